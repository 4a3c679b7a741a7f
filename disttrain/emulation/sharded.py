"""An emulated model that `fully_shard` was applied to: while a collective runs, a rank that waits stops.

On a CPU the thread that would compute is in each collective until that is done. For so long the deadlines of
a pass are put off, and for nothing else: hooks and copies are on the host, as ever.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from disttrain.emulation.deadline_timer import DeadlineTimer
from disttrain.parallel.fsdp_collectives import InterceptedCollective, Make, install, param_groups


def watch(model: nn.Module, timer: DeadlineTimer) -> None:
    """Have `timer` stop for each collective of the model, if it has any.

    For each pass again: who else exchanges FSDP2's objects puts back what was there before.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            try:
                _watch(module, timer)
            except AttributeError:  # another torch
                timer.restarts = True


class _Stop:
    """Makes collectives while `timer` stops."""

    def __init__(self, timer: DeadlineTimer) -> None:
        self._timer = timer

    def __call__(self, make: Make, group: dist.ProcessGroup) -> dist.Work | None:
        with self._timer.paused():
            work = make()
        if work is not None:
            self._timer.restarts = True  # it is waited for elsewhere
        return work


def _watch(module: FSDPModule, timer: DeadlineTimer) -> None:
    groups = param_groups(module)
    # an all-reduce is made through no object, and where a module has several groups, theirs stay
    replicates = any(group.mesh_info.replicate_mesh_dim is not None for group in groups)
    if len(groups) > 1 or replicates or any(group._all_reduce_hook is not None for group in groups):
        timer.restarts = True
        return
    for group in groups:
        gather, scatter = (
            _stopping(comm, timer) for comm in (group._all_gather_comm, group._reduce_scatter_comm)
        )
        install(module, gather, scatter)


def _stopping(comm: Any, timer: DeadlineTimer) -> Any:
    """What makes the calls of `comm` while `timer` stops: itself, if it or what it goes through does so."""
    inner = comm
    while isinstance(inner, InterceptedCollective):
        if isinstance(inner.call, _Stop):
            return comm
        inner = inner.comm
    return InterceptedCollective(comm, _Stop(timer))
