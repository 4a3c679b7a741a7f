"""How ranks work together: one module a strategy, each with the same functions. `collectives` is for loops of
one's own, which shard by `fully_shard`.

`wrap(model, config, world)` makes the model parallel; `without_sync(model)` is the context in which a
backward pass only accumulates; `no_comm(model)` is the one in which passes talk to nobody and leave the
wrapper as it was; `unwrap(model)` gives back the model that was wrapped. `COMM_METHOD` names how exposed communication is measured, or is None where there is none. `PRIMES_BUCKETS` says that the first
backward pass of a process differs from those that follow, and has to be made before the first step.
"""
