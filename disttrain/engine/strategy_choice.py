"""Resolution of `parallel.strategy=auto` on the ranks: estimated memory against the memory of the devices."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from disttrain.config.auto_strategy import allowed, choose_strategy
from disttrain.config.batch_plan import plan_batch
from disttrain.config.config_tree import Config
from disttrain.engine.host_limit import total_memory
from disttrain.engine.memory_estimate import MemoryEstimate, candidates
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
    several_nodes = 1 < world.local_size < world.size
    _, why_ddp_alone = allowed(config, several_nodes=several_nodes)
    if why_ddp_alone:
        return "ddp", why_ddp_alone
    device_bytes = -world.all_reduce_max([-_device_bytes(config, world)])[0]
    local, global_ = config.train.local_batch_size, config.train.global_batch_size
    plan = plan_batch(1 if local == "auto" else local, global_, world.size)
    estimates = candidates(
        config.with_values("train", local_batch_size=plan.local), several_nodes=several_nodes
    )
    chosen = choose_that_fits(estimates, device_bytes) if world.rank == 0 else None
    decided: tuple[str, str] = world.all_gather_object(chosen)[0]
    return decided


def choose_that_fits(estimates: Iterable[MemoryEstimate], device_bytes: float) -> tuple[str, str]:
    """The first strategy that needs at most `device_bytes` less `RESERVE`, or the last; and the arithmetic.

    ddp if the memory cannot be estimated.
    """
    strategy, tried = "ddp", []
    try:
        for needed in estimates:
            strategy = needed.strategy
            tried.append(f"{strategy} needs {arithmetic(needed)}")
            if needed.total_bytes <= (1 - RESERVE) * device_bytes:
                break
        else:
            tried.append("nothing fits: lower train.local_batch_size or set memory.activation_checkpointing")
    except Exception as error:  # a model of the user may fail in any way without real tensors
        return "ddp", f"memory not estimated: {in_one_line(error)}"
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


def _device_bytes(config: Config, world: World) -> float:
    """Memory of this rank's device, its share where ranks share one; infinite if unknown."""
    if world.device.type != "cuda":
        return total_memory(world.local_size)
    ranks = world.local_size if config.resources.device == "shared" else 1
    return torch.cuda.get_device_properties(world.device).total_memory / ranks
