"""Figures of `metrics.json` from sums, durations and samples: pure functions."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from disttrain.hardware.fields import FIELDS, Field
from disttrain.hardware.node_sampler import NodeSamples
from disttrain.hardware.statistics import gpu_summary, process_summary
from disttrain.records.communication import NcclLog
from disttrain.records.metrics import Histogram, StepTime
from disttrain.records.process_limits import list_text
from disttrain.records.steps import PHASES
from disttrain.runtime.process_group import World
from disttrain.telemetry.node_sampling import NodeTelemetry
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, PhaseSeconds

_BINS = 40
_T = TypeVar("_T")


def step_time(durations: Sequence[float]) -> StepTime | None:
    """Distribution of step durations (seconds); None when there are none.

    Percentiles interpolate linearly between order statistics. No outlier is removed.
    """
    if not len(durations):
        return None
    values = np.asarray(durations)
    counts, edges = np.histogram(values, bins=min(_BINS, max(1, len(values))))
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return StepTime(
        mean_s=float(values.mean()),
        std_s=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        min_s=float(values.min()),
        max_s=float(values.max()),
        p50_s=float(p50),
        p95_s=float(p95),
        p99_s=float(p99),
        histogram=Histogram(edges_s=edges.tolist(), counts=counts.tolist()),
    )


def composition(ranks: Sequence[PhaseSeconds], steps: int, measures_comm: bool) -> dict[str, float | None]:
    """Mean seconds per step in each phase: mean over ranks of (the rank's sum / `steps`)."""
    if not steps:
        return dict.fromkeys(PHASES)
    means = (np.asarray(ranks).mean(axis=0) / steps).tolist()
    named: dict[str, float | None] = dict(zip(PHASES, means, strict=True))
    if not measures_comm:
        named[PHASES[COMM]] = named[PHASES[COMM_TRANSFER]] = None
    return named


def communication(ranks: Sequence[PhaseSeconds], measures_comm: bool) -> dict[str, float | None]:
    """Means over ranks of 100 x exposed communication / step time, and of exposed communication / compute."""
    names = ("communication_overhead_percent", "communication_computation_ratio")
    if not measures_comm or not all(parts[COMPUTE] > 0 for parts in ranks):
        return dict.fromkeys(names)
    exposed = [parts[COMM] + parts[COMM_TRANSFER] for parts in ranks]
    overhead = [100 * part / sum(parts) for part, parts in zip(exposed, ranks, strict=True)]
    ratio = [part / parts[COMPUTE] for part, parts in zip(exposed, ranks, strict=True)]
    return dict(zip(names, (float(np.mean(overhead)), float(np.mean(ratio))), strict=True))


def thin(points: Sequence[_T], limit: int = 1000) -> list[_T]:
    """At most `limit` evenly spaced points, with the first and the last."""
    if len(points) <= limit:
        return list(points)
    return [points[i * (len(points) - 1) // (limit - 1)] for i in range(limit)]


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

    @classmethod
    def of(cls, measured: PhaseSeconds, node: NodeTelemetry, world: World) -> RankSummary:
        """The current summary of this rank."""
        reserved = total = None
        if world.device.type == "cuda":
            reserved = torch.cuda.max_memory_reserved(world.device)
            total = torch.cuda.get_device_properties(world.device).total_memory
        memory = (peak_memory_bytes(world.device), reserved, total)
        place = (world.rank, socket.gethostname(), list_text(os.sched_getaffinity(0)))
        return cls(measured, node.device, *memory, node.accumulated(), node.nccl, *place)


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory so far: allocated on the GPU, or the resident set of a process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux gives KiB


def throughput(
    samples_per_s: float | None, ranks: int, devices: int, *, tokens_per_sample: int | None, images: bool
) -> dict[str, float | None]:
    """Samples, tokens and images per second: over all ranks, per rank and per GPU."""
    tokens_per_s = samples_per_s * tokens_per_sample if samples_per_s and tokens_per_sample else None
    return {
        "samples_per_s": samples_per_s,
        "samples_per_s_per_rank": samples_per_s and samples_per_s / ranks,
        "samples_per_second_per_gpu": samples_per_s and samples_per_s / devices,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_rank": tokens_per_s and tokens_per_s / ranks,
        "tokens_per_s_per_gpu": tokens_per_s and tokens_per_s / devices,
        "throughput_images_per_sec": samples_per_s if images else None,
    }


def utilisation(
    samples_per_s: float | None,
    ranks: int,
    devices: int,
    flops_per_sample: int | None,
    peak_flops: float | None,
) -> dict[str, float | None]:
    """Model FLOP/s per rank, and model FLOPs utilization: model FLOP/s / (`peak_flops` x `devices`).

    Utilization above 1 shows that the peak is of another dtype than the products; `mfu` is then null.
    """
    achieved = samples_per_s * flops_per_sample if samples_per_s and flops_per_sample else None
    mfu = achieved / (peak_flops * devices) if achieved and peak_flops else None
    return {
        "model_flops_per_s_per_rank": achieved and achieved / ranks,
        "mfu": mfu if mfu and mfu <= 1 else None,
    }


def memory(ranks: Sequence[RankSummary]) -> dict[str, float | None]:
    """Peak memory in bytes per rank, and that reserved by torch's allocator as a share of a GPU over all its
    ranks."""
    held = [rank.reserved_memory_bytes for rank in ranks if rank.reserved_memory_bytes is not None]
    shares: dict[str, float] = {}
    for rank in ranks:
        if rank.reserved_memory_bytes is not None and rank.device_memory_bytes:
            own = rank.reserved_memory_bytes / rank.device_memory_bytes
            shares[rank.device] = shares.get(rank.device, 0.0) + own
    return {
        "peak_memory_bytes": max(rank.peak_memory_bytes for rank in ranks),
        "peak_reserved_memory_bytes": max(held, default=None),
        "gpu_memory_utilization": max(shares.values(), default=None),
    }


def usage(
    nodes: Sequence[NodeSamples], fields: Sequence[Field] = FIELDS
) -> tuple[dict[str, Any], dict[str, str]]:
    """GPU and process summaries over all nodes with samples, and the reason of each null figure."""
    # nodes on one machine may share a GPU, which each of them samples
    gpus = list({tally.name: tally for node in reversed(nodes) for tally in node.gpus}.values())
    hosts = [tally for node in nodes for tally in node.processes]
    missing = "; ".join(sorted({node.gpu_reason for node in nodes if node.gpu_reason}))
    why = missing or ("sampling did not begin" if nodes else "telemetry.gpu_every_s is 0")
    gpu, reasons = gpu_summary(fields, gpus) if gpus else (None, {"gpu": why})
    processes, of_processes = process_summary(fields, hosts) if hosts else (None, {})
    return {"gpu": gpu, "processes": processes}, reasons | of_processes
