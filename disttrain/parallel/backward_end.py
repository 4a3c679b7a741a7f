"""Callbacks at the end of a backward pass, in the order in which the autograd engine runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def after_own_backward(outputs: Sequence[torch.Tensor], call: Callable[[], None]) -> None:
    """Have `call` run once in a backward pass through any of `outputs`, when this rank's gradients are all
    computed, before the reducer waits for the buckets still in flight.

    The autograd engine runs its final callbacks in the order they were queued. The hook on what a model
    returned (or on the loss) comes before any gradient in the model, so ours precedes DDP's, which is queued
    at the last bucket. Which of several outputs the loss is made of is not known, so the first one that a
    gradient reaches counts.
    """
    queued = False

    def queue(grad: torch.Tensor) -> None:
        nonlocal queued
        if not queued:
            queued = True
            at_end_of_backward(run)

    def run() -> None:
        nonlocal queued
        queued = False
        call()

    for output in outputs:
        output.register_hook(queue)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Within a backward pass: have `call` run after it, and after all that was queued so before."""
    torch.autograd.Variable._execution_engine.queue_callback(call)
