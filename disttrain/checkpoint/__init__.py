"""Checkpoints: the state of training, each in a folder that appears complete or not at all.

    checkpoints/
      step-00000120/             committed; a resumed run takes the newest intact one
        manifest.json            origin and tensors of the checkpoint; size and SHA-256 of every other file
        .metadata  __0_0.distcp  in the layout of `torch.distributed.checkpoint` (DCP)
      step-00000140.a001.tmp/    attempt 1 is writing it
      step-00000100.damaged/     in quarantine

`state` lists the parts that resume as tensors by name, `share` chooses those that this rank saves and copies
them, and `storage` writes, describes and reads the files. `saver` does so while training continues, and reads
the first checkpoint back; `resume` finds the one that a run starts from, and `folder` names, commits,
verifies, quarantines and deletes.
"""
