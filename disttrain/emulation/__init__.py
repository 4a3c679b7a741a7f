"""Emulated accelerators: the layers of a model take stated seconds, and everything around it is real.

| module | holds |
|---|---|
| `table` | the layers with their bytes and seconds, read and checked without torch |
| `shapes` | tables of ResNet-50 and of GPTs, from their layers' true shapes at a stated rate |
| `deadline_timer` | deadlines of the layers of a pass |
| `device` | three ways to spend the time: waiting, a device-side sleep, calibrated matrix products |
| `sharded` | pauses of the timer during the collectives of `fully_shard` |
| `model` | the layers as modules with real parameters, their optimizer, and the model's hooks |
"""
