"""What each rank brings to the summary of a run."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import torch

from disttrain.runtime.process_group import World
from disttrain.telemetry.hardware.sampler import NodeUsage
from disttrain.telemetry.step_clock import Parts


@dataclass(frozen=True)
class RankTotals:
    """One rank's share of the summary."""

    measured: Parts
    device: str
    """Names what it computes on, the same for ranks that share a GPU."""
    peak_memory_bytes: int
    reserved_memory_bytes: int | None
    device_memory_bytes: int | None
    usage: NodeUsage | None
    """Of the whole node, from the rank that samples it."""


def own_totals(measured: Parts, device: str, world: World, usage: NodeUsage | None) -> RankTotals:
    """This rank's, as of now."""
    if world.device.type != "cuda":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux gives KiB
        return RankTotals(measured, device, peak, None, None, usage)
    return RankTotals(
        measured,
        device,
        torch.cuda.max_memory_allocated(world.device),
        torch.cuda.max_memory_reserved(world.device),
        torch.cuda.get_device_properties(world.device).total_memory,
        usage,
    )
