"""Collectives of a process group within a context, and what is private in FSDP2 (read in torch 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

_COLLECTIVES = (
    "allreduce", "allgather", "all_gather_single", "_allgather_base", "reduce_scatter_single",
    "_reduce_scatter_base",
)  # fmt: skip
"""Methods of a process group that `fully_shard` and `SyncBatchNorm` call; the last argument has options."""


Around = Callable[[Any], AbstractContextManager[None]]
"""Context of a collective over one dimension of the mesh, None: over all ranks. The collective is done at its
end, on a GPU for the current stream."""


class ObservedGroup:
    """Stands for a process group where torch calls its collectives.

    `returned_early`: a call has returned while its collective was under way (`unshard(async_op=True)`).
    """

    def __init__(
        self,
        group: Any,
        around: Around = nullcontext,
        returned_early: Callable[[], None] = lambda: None,
        dimension: Any = None,
    ) -> None:
        self.group, self.around, self._returned_early = group, around, returned_early
        self._dimension = dimension

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.group, name)
        return partial(self._run, value) if name in _COLLECTIVES else value

    def _run(self, collective: Callable[..., Any], *arguments: Any) -> Any:
        with self.around(self._dimension):
            work = collective(*arguments)
            if work is not None and not arguments[-1].asyncOp:
                work.wait()
        if work is not None and arguments[-1].asyncOp:
            self._returned_early()
        return work

    # torch looks up the group's backend after an error
    def __eq__(self, other: object) -> bool:
        return other is self or other == self.group

    def __hash__(self) -> int:
        return hash(self.group)


def unobserved(group: Any) -> Any:
    """The process group that `group` stands for, whose collectives nobody observes."""
    while isinstance(group, ObservedGroup):
        group = group.group
    return group


Dimension = Literal["shard", "replicate"]
"""Dimension of the mesh over which a collective runs."""
_GROUPS: dict[str, Dimension] = {"shard_process_group": "shard", "replicate_process_group": "replicate"}
"""Process groups of a mesh."""


def observe(
    module: FSDPModule, around: Around, returned_early: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Have each collective of a module for which `why_unobservable` is None happen within `around`; returns a
    function that restores what was there."""
    before: list[tuple[Any, str, Any]] = []
    two_dimensions = any(map(replicates, param_groups(module)))
    for info in _meshes(module):
        for name in _GROUPS.keys() & vars(info).keys():
            group = getattr(info, name)
            before.append((info, name, group))
            dimension = _GROUPS[name] if two_dimensions else None
            setattr(info, name, ObservedGroup(group, around, returned_early, dimension))

    def restore() -> None:
        for item in before:
            setattr(*item)

    return restore


def observers_of(module: FSDPModule) -> Iterator[Around]:
    """The contexts of the module's collectives now."""
    for info in _meshes(module):
        group = info.shard_process_group
        while isinstance(group, ObservedGroup):
            yield group.around
            group = group.group


def why_unobservable(module: FSDPModule, *needed: str) -> str | None:
    """Reason why a collective of the module cannot be observed, or a wait for one at the attributes `needed`
    of its groups; None if all can."""
    try:
        for group in param_groups(module):
            attrgetter("mesh_info", "post_forward_mesh_info", *needed)(group)
            if group._all_reduce_hook is not None:
                return "the hook of set_all_reduce_hook may communicate, which cannot be timed"
    except AttributeError:
        return f"the places where fully_shard of torch {torch.__version__} waits are unknown"
    return None


def param_groups(module: FSDPModule) -> list[Any]:
    """Parameter groups of a module, each gathered and scattered as one."""
    return list(module._get_fsdp_state()._fsdp_param_groups)


def _meshes(module: FSDPModule) -> list[Any]:
    """Layouts of the ranks, which groups may share; another one after the forward pass for a module that is
    then sharded over fewer ranks."""
    infos = [i for group in param_groups(module) for i in (group.mesh_info, group.post_forward_mesh_info)]
    return list({id(info): info for info in infos if info is not None}.values())


def replicates(group: Any) -> bool:
    """Whether the mesh of a parameter group has a dimension of replicas."""
    return group.mesh_info.replicate_mesh_dim is not None


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules to which `fully_shard` was applied and which have parameters of their own to gather."""
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [module for module in modules if param_groups(module)]


def compute_device(model: nn.Module) -> torch.device:
    """The device of the passes: of gathered parameters, if the shards are kept in host memory."""
    for module in sharded_modules(model):
        return torch.device(param_groups(module)[0].device)
    return next(model.parameters()).device


def groups_of_mesh(model: nn.Module) -> dict[Dimension, dist.ProcessGroup]:
    """This rank's process groups of a mesh with replicas; empty where all ranks share one copy."""
    for module in sharded_modules(model):
        for group in filter(replicates, param_groups(module)):
            return {
                dimension: unobserved(getattr(group.mesh_info, name)) for name, dimension in _GROUPS.items()
            }
    return {}
