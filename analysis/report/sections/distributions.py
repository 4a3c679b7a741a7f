"""Distribution of step times: percentiles by size, and a histogram of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from analysis.draw.charts import Distribution, histograms
from analysis.draw.style import Axis
from analysis.report.common import (
    Column,
    Figure,
    Place,
    Section,
    Study,
    Table,
    of_steps,
    places,
    run_table,
    say,
    size_table,
)
from analysis.results.curves import Point, measured
from analysis.stats.estimates import Estimate, geometric_mean, ratio_of_means
from analysis.units import cell, scale, seconds

_MOST_ROWS = 12
"""Histograms; of more sizes, the smallest and the largest of each configuration are shown."""


_COLUMNS = (
    Column("p50_s", "median", "s", "percentiles"),
    Column("p95_s", "p95", "s", "percentiles"),
    Column("p99_s", "p99", "s", "percentiles"),
    Column("max_s", "slowest", "s", "percentiles"),
    Column("variation", "variation", "share", "variation"),
    Column("steps", "number of steps", "count"),
)


def distributions(study: Study) -> Section | None:
    """None without times of steps."""
    items = [(place, figures) for place in places(study) if (figures := _figures(place.point))]
    if not items:
        return None
    widest, tail = max(((place, figures["tail"]) for place, figures in items), key=lambda item: item[1].value)
    fewest = min(measured(widest.point, "measured_steps"))
    caption = "Percentiles of the measured steps of rank 0, means over repeats."
    return Section(
        "distributions",
        "Distribution of step times",
        say("distributions", cell(tail, "ratio").in_text, widest.name, fewest),
        key=f"p99 up to {seconds(max(figures['p99_s'].value for _, figures in items))}",
        tables=[size_table(study, "step_percentiles", caption, _COLUMNS, items)],
        figures=[_histograms(study, items)],
    )


def _figures(point: Point) -> dict[str, Any]:
    """Values of `_COLUMNS`, and p99 / p50; empty where a repeat has no times of steps."""
    times = measured(point, "step_time")
    if None in times:
        return {}
    p50, p95, p99, most, mean, std = (
        np.array([getattr(each, f"{name}_s") for each in times])
        for name in ("p50", "p95", "p99", "max", "mean", "std")
    )
    estimates = {
        "p50_s": geometric_mean(p50),
        "p95_s": geometric_mean(p95),
        "p99_s": geometric_mean(p99),
        "variation": ratio_of_means(std, mean),
        "tail": geometric_mean(p99 / p50).mapped(partial(max, 1.0)),
    }
    return {name: of_steps(point, estimate) for name, estimate in estimates.items()} | {
        "max_s": Estimate(most.max(), None, None, len(times), "maximum"),
        "steps": sum(measured(point, "measured_steps")),
    }


def _histograms(study: Study, items: Sequence[tuple[Place, dict[str, Any]]]) -> Figure:
    """On one axis, which ends near the 99th percentiles: rare slow steps do not compress the others."""
    rows = [
        Distribution(
            place.name,
            f"median {seconds(figures['p50_s'].value)} · p99 {seconds(figures['p99_s'].value)}",
            np.concatenate([run.step_durations_s for run in place.point.runs]),
            place.colour,
        )
        for place, figures in items
        if len(items) <= _MOST_ROWS or place.point in (place.curve.points[0], place.curve.points[-1])
    ][:_MOST_ROWS]
    high = 1.25 * max(np.percentile(each.values, 99) for each in rows)
    low = 0.95 * min(each.values.min() for each in rows)
    size, unit = scale("s", high)
    x = Axis(f"duration of a step ({unit.strip()})", low / size, high / size)
    scaled = [each._replace(values=each.values / size) for each in rows]
    return Figure(
        "latency",
        "Step times",
        partial(histograms, scaled, x, emulated=study.emulated),
        "; ".join(f"{each.name}: {each.text}" for each in rows),
        lambda: _data(study),
    )


def _data(study: Study) -> Table:
    """Durations of all measured steps."""
    columns = [
        Column("number", "number among the measured steps", "count"),
        Column("step_s", "duration", "s"),
    ]
    runs = [run for place in places(study) for run in place.point.runs]
    rows = ((run, list(enumerate(run.step_durations_s.tolist(), 1))) for run in runs)
    return run_table("step_times", "Durations of the measured steps of rank 0.", columns, rows)


SECTIONS = {110: distributions}
