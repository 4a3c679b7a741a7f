"""Schemes: how gradients travel. One file a scheme, which is found by its name.

A scheme is a file `disttrain/parallel/schemes/<scheme>.py`, or any `package.module:name`, with a function
`build(group, ...)` that returns a `Scheme` (`scheme.py`). Its keyword arguments are options of the config.
"""

from disttrain.parallel.schemes.tensor_calls import (
    all_reduce_compressed,
    hierarchical_all_reduce,
    make_scheme,
)

__all__ = ["all_reduce_compressed", "hierarchical_all_reduce", "make_scheme"]
