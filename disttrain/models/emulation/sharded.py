"""Pauses the deadline timer of an emulated model during the collectives of `fully_shard`.

On a CPU a collective blocks the computing thread until it is done, so deadlines are postponed by its
duration. Hooks and copies run on the host and postpone nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from disttrain.models.emulation.deadline_timer import DeadlineTimer
from disttrain.runtime.fully_shard_hooks import (
    Dimension,
    observe,
    observers_of,
    param_groups,
    why_unobservable,
)


def pause_in_collectives(model: nn.Module, timer: DeadlineTimer) -> None:
    """Observe the collectives of the model, if it has any, so that `timer` pauses in each.

    Called before every pass, because the telemetry restores FSDP2's own objects when it closes.
    """
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        if why_unobservable(module) is not None:
            timer.restarts = True
        elif param_groups(module) and not any(isinstance(each, _Pause) for each in observers_of(module)):
            observe(module, _Pause(timer))


class _Pause:
    """Pauses `timer` during each collective."""

    def __init__(self, timer: DeadlineTimer) -> None:
        self._timer = timer

    def around(self, dimension: Dimension, group: dist.ProcessGroup) -> AbstractContextManager[None]:
        return self._timer.paused()

    def returned_early(self) -> None:
        self._timer.restarts = True  # the wait for it is not observed
