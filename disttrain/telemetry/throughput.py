"""Throughput, utilisation and memory of `metrics.json`: pure functions.

Each function returns fields of `Metrics` and the reasons for null fields. `disttrain.telemetry.null_reasons`
has the reasons for all other fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from disttrain.hardware.fields import FIELDS, Field
from disttrain.hardware.sampler import NodeSamples
from disttrain.hardware.statistics import gpu_summary, process_summary
from disttrain.telemetry.null_reasons import NO_FLOPS, NOTHING_MEASURED
from disttrain.telemetry.rank_summary import RankSummary
from disttrain.telemetry.run_metadata import RunMetadata

Figures = tuple[dict[str, Any], dict[str, str]]
"""Fields by name, and the reason for each null field."""


def of_run(
    metrics_fields: Mapping[str, Any],
    metadata: RunMetadata,
    samples_per_s: float | None,
    devices: int,
    totals: Sequence[RankSummary],
    every_s: float,
    fields: Sequence[Field],
) -> Figures:
    """All figures of this module; `every_s` is the sampling interval `telemetry.gpu_every_s`."""
    ranks = metrics_fields["world_size"]
    parts = [
        throughput(
            samples_per_s,
            ranks,
            devices,
            tokens_per_sample=metadata.tokens_per_sample,
            images=metadata.samples_are_images,
        ),
        utilisation(
            samples_per_s,
            ranks,
            devices,
            flops_per_sample=metrics_fields["model_flops_per_sample"],
            peak_flops=metrics_fields.get("peak_flops"),
            peak_reason=metadata.peak_reason,
        ),
        memory(totals),
        usage([rank.usage for rank in totals if rank.usage], every_s, fields),
    ]
    return (
        {name: value for fields, _ in parts for name, value in fields.items()},
        {name: why for _, reasons in parts for name, why in reasons.items()},
    )


def throughput(
    samples_per_s: float | None, ranks: int, devices: int, *, tokens_per_sample: int | None, images: bool
) -> Figures:
    """Samples, tokens and images per second: over all ranks, per rank and per GPU."""
    tokens_per_s = samples_per_s * tokens_per_sample if samples_per_s and tokens_per_sample else None
    fields: dict[str, float | None] = {
        "samples_per_s": samples_per_s,
        "samples_per_s_per_rank": samples_per_s and samples_per_s / ranks,
        "samples_per_second_per_gpu": samples_per_s and samples_per_s / devices,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_rank": tokens_per_s and tokens_per_s / ranks,
        "tokens_per_s_per_gpu": tokens_per_s and tokens_per_s / devices,
        "throughput_images_per_sec": samples_per_s if images else None,
    }
    reasons = dict.fromkeys((name for name, value in fields.items() if value is None), NOTHING_MEASURED)
    if not tokens_per_sample:
        names = (name for name in fields if name.startswith("tokens"))
        reasons |= dict.fromkeys(names, "samples are not known to be token sequences")
    if not images:
        reasons["throughput_images_per_sec"] = "samples are not known to be images"
    return fields, reasons


def utilisation(
    samples_per_s: float | None,
    ranks: int,
    devices: int,
    *,
    flops_per_sample: int | None,
    peak_flops: float | None,
    peak_reason: str,
) -> Figures:
    """Model FLOP/s per rank, and model FLOPs utilization: model FLOP/s / (`peak_flops` x `devices`).

    Utilization above 1 shows that the peak is of another dtype than the products; `mfu` is then null.
    """
    achieved = samples_per_s * flops_per_sample if samples_per_s and flops_per_sample else None
    mfu = achieved / (peak_flops * devices) if achieved and peak_flops else None
    reasons: dict[str, str] = {}
    if peak_flops is None:
        reasons |= dict.fromkeys(("peak_flops", "peak_source", "mfu"), peak_reason)
    elif achieved is None:
        reasons["mfu"] = NOTHING_MEASURED
    elif mfu is not None and mfu > 1:
        reasons["mfu"] = f"{mfu:.2f} of the peak: the peak is of another dtype than the products"
        mfu = None
    if achieved is None:
        reasons["model_flops_per_s_per_rank"] = NOTHING_MEASURED if flops_per_sample else NO_FLOPS
    return {"model_flops_per_s_per_rank": achieved and achieved / ranks, "mfu": mfu}, reasons


def memory(ranks: Sequence[RankSummary]) -> Figures:
    """Peak memory reserved by torch's allocator, in bytes per rank and as a share of a GPU over all its
    ranks."""
    held = [rank.reserved_memory_bytes for rank in ranks if rank.reserved_memory_bytes is not None]
    shares: dict[str, float] = {}
    for rank in ranks:
        if rank.reserved_memory_bytes is not None and rank.device_memory_bytes:
            own = rank.reserved_memory_bytes / rank.device_memory_bytes
            shares[rank.device] = shares.get(rank.device, 0.0) + own
    fields = {
        "peak_reserved_memory_bytes": max(held, default=None),
        "gpu_memory_utilization": max(shares.values(), default=None),
    }
    return fields, {name: "no rank has a GPU" for name, value in fields.items() if value is None}


def usage(nodes: Sequence[NodeSamples], every_s: float, rows: Sequence[Field] = FIELDS) -> Figures:
    """GPU and process summaries over all nodes with samples."""
    fields: dict[str, Any] = {"gpu": None, "processes": None}
    if not nodes:
        why = "telemetry.gpu_every_s is 0" if not every_s else "no node has samples"
        return fields, {"gpu": why, "processes": why}
    reasons: dict[str, str] = {}
    # nodes on one machine may share a GPU, which each of them samples
    gpus = list({tally.name: tally for node in reversed(nodes) for tally in node.gpus}.values())
    missing = sorted({node.gpu_reason for node in nodes if node.gpu_reason})
    if gpus:
        fields["gpu"], why_null = gpu_summary(rows, gpus)
        reasons |= why_null
    else:
        reasons["gpu"] = "; ".join(missing) or "sampling did not begin"
    hosts = [tally for node in nodes for tally in node.processes]
    if hosts:
        fields["processes"], why_null = process_summary(rows, hosts)
        reasons |= why_null
    else:
        reasons["processes"] = "sampling did not begin"
    return fields, reasons
