"""Checkpoints: the state of training as a folder that is either whole or not there.

    checkpoints/
      step-00000120/             committed: a reader takes the newest whose checksums hold
        manifest.json            what it is of, and the size and SHA-256 of every other file
        .metadata  __0_0.distcp  as `torch.distributed.checkpoint` lays them out
      step-00000140.a001.tmp/    being written by attempt 1
      step-00000100.damaged/     found damaged, set aside

`state` turns what is alive into tensors and back, `content` says which of them a run's checkpoint holds,
`storage` turns tensors into files and back, `manifest` says what they are of, `folder` knows the names
above and moves between them, `saver` says when and lets training go on meanwhile, `resume` finds what to
start from.
"""
