"""How ranks share a model: `build_mesh` lays them out, and one module a strategy makes the model parallel.

A strategy is a file `disttrain/parallel/<name>.py` with a function `build(config)` that returns a `Strategy`
(`strategy.py`), a section of its own options in `ParallelConfig`, and its name in `ParallelConfig.strategy`.
`fsdp_collectives` intercepts the collectives of `fully_shard` in loops that are not the trainer's.
"""
