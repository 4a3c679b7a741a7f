"""One rank's part of the summary of a run."""

from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass

import torch

from disttrain.hardware.sampler import NodeSamples
from disttrain.records.fabric import NcclLog
from disttrain.records.processor_list import list_text
from disttrain.runtime.process_group import World
from disttrain.telemetry.node_sampling import NodeTelemetry
from disttrain.telemetry.step_clock import PhaseSeconds


@dataclass(frozen=True)
class RankSummary:
    """One rank's share of the summary."""

    measured: PhaseSeconds
    device: str
    """Name of its device, equal for ranks that share a GPU."""
    peak_memory_bytes: int
    reserved_memory_bytes: int | None
    device_memory_bytes: int | None
    usage: NodeSamples | None
    """Samples of the whole node, from the rank that takes them."""
    nccl: tuple[NcclLog | None, str | None] = (None, None)
    """NCCL's log of the first steps on the node, or the reason for none, from the same rank."""
    rank: int = 0
    host: str = ""
    processors: str = ""
    """Processors that this rank may use, such as `0-7,64-71`."""


def rank_summary(measured: PhaseSeconds, node: NodeTelemetry, world: World) -> RankSummary:
    """The current summary of this rank."""
    device, usage, nccl = node.device, node.accumulated(), node.nccl
    place = (world.rank, socket.gethostname(), list_text(os.sched_getaffinity(0)))
    if world.device.type != "cuda":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux gives KiB
        return RankSummary(measured, device, peak, None, None, usage, nccl, *place)
    return RankSummary(
        measured,
        device,
        torch.cuda.max_memory_allocated(world.device),
        torch.cuda.max_memory_reserved(world.device),
        torch.cuda.get_device_properties(world.device).total_memory,
        usage,
        nccl,
        *place,
    )
