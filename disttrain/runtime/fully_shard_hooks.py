"""Observation of the collectives of `fully_shard`: when each begins and ends on the calling thread.

FSDP2 calls all-gather and reduce-scatter through objects that can be replaced (`set_custom_all_gather`,
`set_custom_reduce_scatter`). Under hybrid sharding an all-reduce between the replicas directly follows the
reduce-scatter, and a hook runs after it (`set_all_reduce_hook`), so the time between them is the all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

Dimension = Literal["shard", "replicate"]
"""Dimension of the mesh over which a collective runs."""


class Observer(Protocol):
    """Receives each collective of a module."""

    def around(self, dimension: Dimension, group: dist.ProcessGroup) -> AbstractContextManager[None]:
        """Context of the call. On a CPU the collective is done at its end."""

    def returned_early(self) -> None:
        """The call has returned while its collective was still under way (`unshard(async_op=True)`)."""


class ObservedCollective:
    """One of FSDP2's communication objects, each call in the context of an observer."""

    def __init__(self, comm: Any, observer: Observer) -> None:
        self.comm = comm
        self.observer = observer
        self.allocate = comm.allocate

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, **how: Any
    ) -> dist.Work | None:
        with self.observer.around("shard", group):
            work: dist.Work | None = self.comm(
                output_tensor=output_tensor, input_tensor=input_tensor, group=group, **how
            )
        if work is not None:
            self.observer.returned_early()
        return work


class _BeforeAllReduce(ObservedCollective):
    """A reduce-scatter that an all-reduce between replicas follows, unless gradients still accumulate."""

    def __init__(self, comm: Any, observer: Observer, param_group: Any) -> None:
        super().__init__(comm, observer)
        self._param_group = param_group
        self.all_reduce = ExitStack()

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, **how: Any
    ) -> dist.Work | None:
        work = super().__call__(output_tensor, input_tensor, group, **how)
        if self._param_group.all_reduce_grads:
            replicas = self._param_group.mesh_info.replicate_process_group
            self.all_reduce.enter_context(self.observer.around("replicate", replicas))
        return work


class _AfterAllReduce:
    """The hook after an all-reduce; `before` is the hook of another observer."""

    def __init__(self, scatter: _BeforeAllReduce, before: _AfterAllReduce | None) -> None:
        self._scatter = scatter
        self._before = before

    def __call__(self, output: torch.Tensor) -> None:
        self._scatter.all_reduce.close()
        if self._before is not None:
            self._before(output)


def observe(module: FSDPModule, observer: Observer) -> Callable[[], None]:
    """Have `observer` receive each collective of a module for which `why_unobservable` is None; returns a
    function that restores what was there."""
    [group] = param_groups(module)
    gather, scatter, hook = group._all_gather_comm, group._reduce_scatter_comm, group._all_reduce_hook
    if replicates(group):
        before = _BeforeAllReduce(scatter, observer, group)
        module.set_all_reduce_hook(_AfterAllReduce(before, hook))
        _install(module, ObservedCollective(gather, observer), before)
    else:
        _install(module, ObservedCollective(gather, observer), ObservedCollective(scatter, observer))

    def restore() -> None:
        _install(module, gather, scatter)
        group._all_reduce_hook = hook

    return restore


def _install(module: FSDPModule, gather: Any, scatter: Any) -> None:
    module.set_custom_all_gather(gather)
    module.set_custom_reduce_scatter(scatter)


def observers_of(module: FSDPModule) -> list[Observer]:
    """Those who observe the module now."""
    [group] = param_groups(module)
    found, comm = [], group._all_gather_comm
    while isinstance(comm, ObservedCollective):
        found.append(comm.observer)
        comm = comm.comm
    return found


def why_unobservable(module: FSDPModule) -> str | None:
    """Reason why some collective of the module cannot be observed; None if all can."""
    try:
        groups = param_groups(module)
        if len(groups) > 1:  # FSDP2 has one communication object per module
            return "fully_shard was given a shard_placement_fn that makes several groups of one module"
        for group in groups:
            if group._all_reduce_hook is not None and not isinstance(group._all_reduce_hook, _AfterAllReduce):
                return "the hook of set_all_reduce_hook may communicate, which cannot be timed"
            _ = group._all_gather_comm, group._reduce_scatter_comm, group.all_reduce_grads
            if replicates(group) and group.mesh_info.shard_mesh_size == 1:
                return "a mesh with one rank in its shard dimension has an all-reduce that cannot be timed"
        _ = FSDPModule.set_custom_all_gather, FSDPModule.set_custom_reduce_scatter
    except AttributeError:
        return f"torch {torch.__version__} has no interface to observe the collectives of fully_shard"
    return None


def param_groups(module: FSDPModule) -> list[Any]:
    """Parameter groups of a module, each gathered and scattered as one. Private in FSDP2: the only way to
    read the communication objects in use."""
    return list(module._get_fsdp_state()._fsdp_param_groups)


def replicates(group: Any) -> bool:
    """Whether the mesh of a parameter group has a dimension of replicas."""
    return group.mesh_info.replicate_mesh_dim is not None


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules to which `fully_shard` was applied and which have parameters of their own to gather."""
    found = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [module for module in found if param_groups(module)]


def compute_device(model: nn.Module) -> torch.device:
    """The device of the passes: of gathered parameters, if the shards are kept in host memory."""
    for module in sharded_modules(model):
        for group in param_groups(module):
            return torch.device(group.device)
    return next(model.parameters()).device


def groups_of_mesh(model: nn.Module) -> dict[Dimension, dist.ProcessGroup]:
    """This rank's process groups of a mesh with replicas; empty where all ranks share one copy."""
    for module in sharded_modules(model):
        for group in param_groups(module):
            if replicates(group):
                info = group.mesh_info
                return {"shard": info.shard_process_group, "replicate": info.replicate_process_group}
    return {}
