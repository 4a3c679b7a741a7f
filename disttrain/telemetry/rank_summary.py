"""What each rank brings to the summary of a run."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import torch

from disttrain.runtime.process_group import World
from disttrain.telemetry.hardware.sampler import NodeSamples
from disttrain.telemetry.step_clock import PhaseSeconds


@dataclass(frozen=True)
class RankSummary:
    """One rank's share of the summary."""

    measured: PhaseSeconds
    device: str
    """Names what it computes on, the same for ranks that share a GPU."""
    peak_memory_bytes: int
    reserved_memory_bytes: int | None
    device_memory_bytes: int | None
    usage: NodeSamples | None
    """Of the whole node, from the rank that samples it."""


def rank_summary(measured: PhaseSeconds, device: str, world: World, usage: NodeSamples | None) -> RankSummary:
    """This rank's, as of now."""
    if world.device.type != "cuda":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux gives KiB
        return RankSummary(measured, device, peak, None, None, usage)
    return RankSummary(
        measured,
        device,
        torch.cuda.max_memory_allocated(world.device),
        torch.cuda.max_memory_reserved(world.device),
        torch.cuda.get_device_properties(world.device).total_memory,
        usage,
    )
