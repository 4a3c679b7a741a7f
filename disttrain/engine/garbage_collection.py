"""Garbage collection of Python at fixed steps, the same on all ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collections_by_hand() -> Iterator[None]:
    """Turn Python's automatic collection of garbage off, which would delay the other ranks at each rank's
    turn.

    Objects that exist at the first step, such as modules and the model, are frozen: no collection walks over
    them.
    """
    enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
