"""Figures of `metrics.json` from sums and durations: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from disttrain.records.metrics import Histogram, StepTime
from disttrain.records.steps import PHASES
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
