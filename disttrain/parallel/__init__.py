"""How ranks share a model: `build_mesh` lays them out, and one module a strategy makes the model parallel.

A strategy is a file `disttrain/parallel/<name>.py` with a function `build(config)` that returns a `Strategy`
(`base.py`), and a section of its own options in `ParallelConfig`.
"""
