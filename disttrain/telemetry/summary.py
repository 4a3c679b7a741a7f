"""Figures of `metrics.json` from sums, durations and samples: pure functions."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from disttrain.hardware.fields import FIELDS, Field
from disttrain.hardware.node_sampler import NodeSamples
from disttrain.hardware.statistics import gpu_summary, process_summary
from disttrain.records.communication import NcclLog
from disttrain.records.metrics import Histogram, Metrics, StepTime
from disttrain.records.process_limits import list_text
from disttrain.records.steps import PHASES
from disttrain.runtime.device import peak_memory_bytes
from disttrain.runtime.process_group import World
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.node_sampling import NodeTelemetry
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, PhaseSeconds

NO_FLOPS = "the model's FLOPs could not be counted"
_NOTHING_MEASURED = "no step was measured"
_DIFFERENT_COLLECTIVES = "the ranks exchange different messages, so no step is profiled for collectives"
_EXPOSED = (
    "comm_method",
    "comm_split",
    "communication_overhead_percent",
    "communication_computation_ratio",
)
_BINS = 40


def step_time(durations: Sequence[float]) -> StepTime | None:
    """Distribution of step durations (seconds); None when there are none.

    Percentiles interpolate linearly between order statistics. No outlier is removed.
    """
    if not len(durations):
        return None
    values = np.asarray(durations)
    counts, edges = np.histogram(values, bins=min(_BINS, max(1, len(values))))
    percentiles = np.percentile(values, [50, 95, 99]).tolist()
    return StepTime(
        mean_s=float(values.mean()),
        std_s=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        min_s=float(values.min()),
        max_s=float(values.max()),
        **dict(zip(("p50_s", "p95_s", "p99_s"), percentiles, strict=True)),
        histogram=Histogram(edges_s=edges.tolist(), counts=counts.tolist()),
    )


def phases(ranks: Sequence[PhaseSeconds], steps: int, comm_known: bool) -> dict[str, Any]:
    """From each rank's sums over `steps` measured steps, means over ranks: seconds of a step in each phase,
    100 x exposed communication / step time, and exposed communication / compute."""
    seconds = np.asarray(ranks)
    exposed, compute = seconds[:, [COMM, COMM_TRANSFER]].sum(axis=1), seconds[:, COMPUTE]
    composition = dict.fromkeys(PHASES)
    if steps:
        composition |= zip(PHASES, (seconds.mean(axis=0) / steps).tolist(), strict=True)
    if not comm_known:
        composition |= dict.fromkeys((PHASES[COMM], PHASES[COMM_TRANSFER]))
    known = comm_known and bool((compute > 0).all())
    return {
        "measured_s": float(seconds.sum(axis=1).mean()) if steps else None,
        "composition": composition,
        "communication_overhead_percent": float((100 * exposed / seconds.sum(axis=1)).mean())
        if known
        else None,
        "communication_computation_ratio": float((exposed / compute).mean()) if known else None,
    }


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


def rates(samples_per_s: float | None, ranks: int, devices: int, facts: RunFacts) -> dict[str, float | None]:
    """Samples, tokens, images and model FLOP per second, over all ranks, per rank and per GPU; and model
    FLOPs utilization: model FLOP/s / (peak FLOP/s x `devices`).

    Utilization above 1 shows that the peak is of another dtype than the products; `mfu` is then null.
    """
    tokens, flops = facts.tokens_per_sample, facts.metrics.get("model_flops_per_sample")
    tokens_per_s = samples_per_s * tokens if samples_per_s and tokens else None
    flops_per_s = samples_per_s * flops if samples_per_s and flops else None
    peak_flops = facts.metrics.get("peak_flops")
    mfu = flops_per_s / (peak_flops * devices) if flops_per_s and peak_flops else None
    return {
        "samples_per_s": samples_per_s,
        "samples_per_s_per_rank": samples_per_s and samples_per_s / ranks,
        "samples_per_second_per_gpu": samples_per_s and samples_per_s / devices,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_rank": tokens_per_s and tokens_per_s / ranks,
        "tokens_per_s_per_gpu": tokens_per_s and tokens_per_s / devices,
        "throughput_images_per_sec": samples_per_s if facts.samples_are_images else None,
        "model_flops_per_s_per_rank": flops_per_s and flops_per_s / ranks,
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


def null_reasons(
    metrics: Metrics, facts: RunFacts, *, comm: str | None, requested: int, planned: int
) -> dict[str, str]:
    """Reason for each null figure of communication and MFU, by its name. `comm`: why exposed communication
    was not measured; `requested` and `planned`: steps to be profiled for their collectives."""
    not_measured = None if metrics.measured_steps else _NOTHING_MEASURED
    if metrics.comm_method is None:
        alone = "one rank has no peers to communicate with" if metrics.world_size == 1 else None
        exposed = comm or alone or "a rank could not measure it"
    else:
        exposed = not_measured or "a rank without compute in measured steps"
    if metrics.comm_method is None and not planned:
        profiled = exposed
    elif not requested:
        profiled = "telemetry.profiled_steps is 0"
    elif not planned:
        profiled = "the run is too short for a profiled step after the warm-up"
    else:
        profiled = "no profiled step yet shows the same collectives on all ranks"
    no_flops = None if metrics.model_flops_per_sample else NO_FLOPS
    no_peak = facts.peak_reason if metrics.peak_flops is None else None
    why = {
        **dict.fromkeys(_EXPOSED, exposed),
        **dict.fromkeys(
            ("comm", "communication_time_per_step"),
            profiled if facts.communication.compares_passes else _DIFFERENT_COLLECTIVES,
        ),
        "model_flops_per_sample": NO_FLOPS,
        "model_flops_per_s_per_rank": no_flops or _NOTHING_MEASURED,
        "peak_flops": facts.peak_reason,
        "mfu": no_peak
        or no_flops
        or not_measured
        or "above 1: the peak is of another dtype than the products",
    }
    return {name: reason for name, reason in why.items() if getattr(metrics, name) is None}
