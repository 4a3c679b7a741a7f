"""Schemes: how gradients travel. One file a scheme, which is found by its name.

A scheme is a file `disttrain/parallel/schemes/<scheme>.py`, or any `package.module:name`, with a function
`build(group, ...)` that returns a `Scheme` (`scheme.py`). Its keyword arguments are options of the config.
Here are the schemes as calls on a tensor, in place of `torch.distributed.all_reduce`, for a loop of one's
own.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme, build_by_name

__all__ = ["all_reduce_compressed", "hierarchical_all_reduce", "make_scheme"]


def make_scheme(
    scheme: str,
    *,
    ranks_per_node: int | None = None,
    timeout: timedelta | None = None,
    **options: Any,
) -> Scheme:
    """A scheme over all ranks of the default process group. Collective: all ranks call it.

    Args:
        scheme: `fp16`, `bf16`, `powersgd`, `topk`, `randomk`, `hierarchical`, or `package.module:name`.
        ranks_per_node: by default `LOCAL_WORLD_SIZE` of torchrun, else all ranks; for `hierarchical`.
        timeout: of a collective of its own groups; None is PyTorch's.
        options: those of the scheme, such as `ratio=0.01`.
    """
    local_size = ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    return build_by_name(scheme, CountedGroup(None, local_size, timeout), options)


@torch.no_grad()
def all_reduce_compressed(
    tensor: Tensor, scheme: str | Scheme, *, name: str = "", step: int = 1, **options: Any
) -> Tensor:
    """Overwrite `tensor` with its sum over all ranks, as far as `scheme` sends it, and return it.

    Collective: all ranks call it with tensors of one shape and dtype.

    Args:
        tensor: of floating-point numbers. Ranks receive equal values.
        scheme: name of a scheme with its `options`, or the result of `make_scheme`. Only the latter keeps the
            errors of `topk`, `randomk` and `powersgd` and adds them to the tensor of the next call.
        name: of the tensor among those for which the scheme keeps errors.
        step: seed of the choice of `randomk` and of the first factors of `powersgd`; equal on all ranks.
    """
    made = make_scheme(scheme, **options) if isinstance(scheme, str) else scheme
    flat = tensor.flatten()
    made.average(FlatGradient(flat, {name: tensor.shape}), step)
    return tensor.copy_(flat.mul_(made.group.size).view_as(tensor))


def hierarchical_all_reduce(tensor: Tensor, ranks_per_node: int | None = None) -> Tensor:
    """Overwrite `tensor` with its sum over all ranks, and return it: a reduce within each node, an all-reduce
    between the first ranks of the nodes, a broadcast within each node.

    Collective: all ranks call it. `ranks_per_node` consecutive ranks are a node; by default
    `LOCAL_WORLD_SIZE` of torchrun. The groups are made by the first call.
    """
    return all_reduce_compressed(tensor, _hierarchical(dist.group.WORLD, ranks_per_node))


@functools.lru_cache(maxsize=4)
def _hierarchical(world: dist.ProcessGroup | None, ranks_per_node: int | None) -> Scheme:
    return make_scheme("hierarchical", ranks_per_node=ranks_per_node)
