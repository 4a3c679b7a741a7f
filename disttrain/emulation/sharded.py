"""Pauses the deadline timer of an emulated model during the collectives of `fully_shard`.

On a CPU a collective blocks the computing thread until it is done, so deadlines are postponed by its
duration. Hooks and copies run on the host and postpone nothing.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from disttrain.emulation.deadline_timer import DeadlineTimer
from disttrain.runtime.fully_shard_hooks import InterceptedCollective, Make, install, param_groups


def pause_in_collectives(model: nn.Module, timer: DeadlineTimer) -> None:
    """Intercept the collectives of the model, if it has any, so that `timer` pauses in each.

    Called before every pass, because the telemetry restores FSDP2's own objects when it closes.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            try:
                _intercept(module, timer)
            except AttributeError:  # a version of torch with other private names
                timer.restarts = True


class _Paused:
    """Runs a collective while `timer` is paused."""

    def __init__(self, timer: DeadlineTimer) -> None:
        self._timer = timer

    def __call__(self, make: Make, group: dist.ProcessGroup) -> dist.Work | None:
        with self._timer.paused():
            work = make()
        if work is not None:
            self._timer.restarts = True  # asynchronous: the wait for it is not intercepted
        return work


def _intercept(module: FSDPModule, timer: DeadlineTimer) -> None:
    groups = param_groups(module)
    # FSDP2 has no custom object for an all-reduce, and one object per module, not per parameter group
    replicates = any(group.mesh_info.replicate_mesh_dim is not None for group in groups)
    if len(groups) > 1 or replicates or any(group._all_reduce_hook is not None for group in groups):
        timer.restarts = True
        return
    for group in groups:
        gather, scatter = (
            _pausing(comm, timer) for comm in (group._all_gather_comm, group._reduce_scatter_comm)
        )
        install(module, gather, scatter)


def _pausing(comm: Any, timer: DeadlineTimer) -> Any:
    """An object that calls `comm` while `timer` is paused; `comm` itself if it already does."""
    inner = comm
    while isinstance(inner, InterceptedCollective):
        if isinstance(inner.call, _Paused):
            return comm
        inner = inner.comm
    return InterceptedCollective(comm, _Paused(timer))
