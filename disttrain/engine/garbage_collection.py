"""Garbage collection of Python at fixed steps, the same on all ranks.

A collection at a step of its own on each rank would delay the other ranks at each rank's turn. Objects that
exist at the first step, such as modules and the model, are frozen: no collection walks over them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from disttrain.engine.hook import Hook
from disttrain.telemetry.step_result import StepResult


class CollectGarbage(Hook):
    """Collects garbage after every `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every

    def on_start(self, step: int) -> None:
        gc.collect()
        gc.freeze()

    def on_step(self, result: StepResult) -> None:
        if result.step % self._every == 0:
            gc.collect()


@contextmanager
def without_automatic_collection(active: bool) -> Iterator[None]:
    """Turn Python's automatic collection off within the block, if `active`, and unfreeze objects at its
    end."""
    if not active or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
