"""Emulated accelerators: a model whose layers take stated times, and everything around it is real.

| module | holds |
|---|---|
| `table` | what is emulated: layers with their bytes and seconds, read and checked without torch |
| `shapes` | tables of ResNet-50 and of GPTs, from their layers' true shapes at a stated rate |
| `deadline_timer` | deadlines of the layers of a pass |
| `device` | what passes the time: waiting, a device-side sleep, or products calibrated to last as long |
| `sharded` | a model that `fully_shard` was applied to: its collectives keep it from computing |
| `model` | the layers as modules with real parameters, and the optimizer that goes with them |
"""
