"""Resolution of `parallel.strategy=auto` on the ranks: estimated memory against the memory of the devices."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from disttrain.config.auto_strategy import allowed, choose_strategy
from disttrain.config.batch_plan import plan_batch
from disttrain.config.config_tree import Config
from disttrain.engine.host_limit import total_memory
from disttrain.engine.memory_estimate import MemoryEstimate, estimate
from disttrain.errors import in_one_line
from disttrain.parallel.dp import dp_reason
from disttrain.runtime.process_group import World

RESERVE = 0.08
"""Fraction of the device memory left free, for fragmentation, the device's context and buffers of NCCL."""


def resolve_strategy(config: Config, world: World) -> tuple[str, str]:
    """(strategy, reason), the same on all ranks. All ranks together.

    `auto` on several ranks is the first of ddp, hsdp (nodes of several ranks) and fsdp whose estimated memory
    fits the smallest device. Raises `ConfigError` for `single` and `dp` on several ranks.
    """
    wanted = config.parallel.strategy
    if wanted == "dp" and world.size == 1:
        return wanted, dp_reason(world)
    if wanted != "auto" or world.size == 1:
        return choose_strategy(wanted, world.size)
    if config.model.kind == "emulated":
        return "ddp", "the layers of an emulated model take no device memory"
    candidates, why_ddp_alone = allowed(config, several_nodes=1 < world.local_size < world.size)
    if why_ddp_alone:
        return "ddp", why_ddp_alone
    device_bytes = -world.all_reduce_max([-_device_bytes(config, world)])[0]
    sized = config.model_copy(update={"train": config.train.model_copy(update=_batch(config, world))})

    def need(strategy: str) -> MemoryEstimate:
        parallel = sized.parallel.model_copy(update={"strategy": strategy})
        return estimate(sized.model_copy(update={"parallel": parallel}))

    chosen = choose_that_fits(candidates, need, device_bytes) if world.rank == 0 else None
    decided: tuple[str, str] = world.all_gather_object(chosen)[0]
    return decided


def choose_that_fits(
    candidates: list[str], need: Callable[[str], MemoryEstimate], device_bytes: float
) -> tuple[str, str]:
    """The first candidate that needs at most `device_bytes` less `RESERVE`, or the last; and the arithmetic.

    The first candidate if the memory cannot be estimated.
    """
    tried = []
    for strategy in candidates:
        try:
            needed = need(strategy)
        except Exception as error:  # a model of the user may fail in any way without real tensors
            return candidates[0], f"memory not estimated: {in_one_line(error)}"
        tried.append(f"{strategy} needs {arithmetic(needed)}")
        if needed.total_bytes <= (1 - RESERVE) * device_bytes:
            break
    else:
        tried.append("nothing fits: lower train.local_batch_size or set memory.activation_checkpointing")
    limit = f"{_size(device_bytes)} a rank, less {RESERVE:.0%} in reserve"
    if not math.isfinite(device_bytes):
        limit = "unknown"
    return strategy, f"{'; '.join(tried)}; device memory: {limit}"


def arithmetic(needed: MemoryEstimate) -> str:
    """`1.2 GiB = weights 0.3 + gradients 0.3 + ...`"""
    parts = {
        "weights": needed.parameters_bytes,
        "gradients": needed.gradients_bytes,
        "optimizer": needed.optimizer_bytes,
        "communication": needed.communication_bytes,
        f"activations of {needed.local_batch_size} samples": needed.activations_bytes,
    }
    terms = " + ".join(f"{name} {_size(value)}" for name, value in parts.items())
    return f"{_size(needed.total_bytes)} = {terms}"


def _size(value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def _batch(config: Config, world: World) -> dict[str, int]:
    """The local batch size as a number; `auto` counts as one sample."""
    train = config.train
    local = 1 if train.local_batch_size == "auto" else train.local_batch_size
    return {"local_batch_size": plan_batch(local, train.global_batch_size, world.size).local}


def _device_bytes(config: Config, world: World) -> float:
    """Memory of this rank's device, its share where ranks share one; infinite if unknown."""
    if world.device.type != "cuda":
        return total_memory(world.local_size)
    ranks = world.local_size if config.resources.device == "shared" else 1
    return torch.cuda.get_device_properties(world.device).total_memory / ranks
