"""Checkpoints: the state of training, each in a folder that appears complete or not at all.

    checkpoints/
      step-00000120/             committed; a resumed run takes the newest intact one
        manifest.json            origin of the checkpoint, and size and SHA-256 of every other file
        .metadata  __0_0.distcp  in the layout of `torch.distributed.checkpoint` (DCP)
      step-00000140.a001.tmp/    attempt 1 is writing it
      step-00000100.damaged/     in quarantine

`saver` takes checkpoints while training continues, and reads the first one back; `resume` finds the one
that a run starts from.
`train_state` lists the parts that resume, `state_tensors` converts them to tensors by name and back, and
`storage` writes and reads these tensors, through `safe_reader` without executing code; `host_buffers` holds
their copies until they are on disk. `manifest` compares a checkpoint with the run, `integrity` verifies its
files, `folder` names, commits and quarantines, `retention` deletes old ones.
"""
