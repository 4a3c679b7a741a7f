"""How ranks share a model: a strategy lays them out and makes the model parallel; one module each.

A strategy is a file `disttrain/parallel/<name>.py` with a function `build(config)` that returns a `Strategy`
(`base.py`), and a section of its own options in `ParallelConfig`.
"""
