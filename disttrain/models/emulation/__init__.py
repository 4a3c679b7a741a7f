"""Emulated accelerators: layers take stated seconds; data loading, communication and optimizer are real.

| module | holds |
|---|---|
| `table` | the layers with their bytes and seconds, read and checked without torch |
| `shapes` | tables of ResNet-50 and of GPTs, from the shapes of their layers at a stated rate |
| `deadline_timer` | deadlines of the layers of a pass |
| `device` | implementations of a layer's time: waiting, a device-side sleep, calibrated matrix products |
| `sharded` | pauses of the timer during the collectives of `fully_shard` |
| `model` | the layers as modules with real parameters, their optimizer, and the model's hooks |
"""
