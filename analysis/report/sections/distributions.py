"""Distribution of step times: percentiles by size, and a histogram of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from analysis.draw.distributions import Distribution, histograms
from analysis.draw.style import Axis
from analysis.report.common import (
    all_points,
    coloured_points,
    kept,
    of_steps,
    point_name,
    point_table,
    run_table,
)
from analysis.report.section import Column, Figure, Section, Table
from analysis.report.sentences import say
from analysis.results.curves import Point, measured
from analysis.stats.estimates import Estimate, Floats, geometric_mean, ratio_of_means
from analysis.study import Study
from analysis.units import cell, scale, seconds

ORDER = 110

_MOST_ROWS = 12
"""Histograms; of more sizes, the smallest and the largest of each configuration are shown."""


def _of_repeats(point: Point, name: str) -> Floats:
    return np.array(measured(point, f"step_time.{name}"))


def _mean(name: str) -> Callable[[Any], Estimate]:
    return lambda point: of_steps(point, geometric_mean(_of_repeats(point, name)))


def _longest(point: Point) -> Estimate:
    longest = _of_repeats(point, "max_s")
    return Estimate(longest.max(), None, None, len(longest), "maximum")


def _variation(point: Point) -> Estimate:
    return of_steps(point, ratio_of_means(_of_repeats(point, "std_s"), _of_repeats(point, "mean_s")))


def _tail(point: Point) -> Estimate:
    return of_steps(point, geometric_mean(_of_repeats(point, "p99_s") / _of_repeats(point, "p50_s"))).mapped(
        partial(max, 1.0)
    )


_COLUMNS = (
    Column("p50_s", "median", "s", "percentiles", get=_mean("p50_s")),
    Column("p95_s", "p95", "s", "percentiles", get=_mean("p95_s")),
    Column("p99_s", "p99", "s", "percentiles", get=_mean("p99_s")),
    Column("max_s", "slowest", "s", "percentiles", get=_longest),
    Column("variation", "variation", "share", "variation", get=_variation),
    Column("steps", "number of steps", "count", get=lambda at: sum(measured(at, "measured_steps"))),
)


def build(study: Study) -> Section | None:
    """None without times of steps."""
    points = [at for at in coloured_points(study) if None not in measured(at[1], "step_time")]
    if not points:
        return None
    largest, place, _ = max(points, key=lambda at: _tail(at[1]).value)
    fewest = min(measured(place, "measured_steps"))
    shown = [
        Distribution(
            point_name(study, curve, point),
            f"median {seconds(_mean('p50_s')(point).value)} · p99 {seconds(_mean('p99_s')(point).value)}",
            np.concatenate([run.step_durations_s for run in point.runs]),
            colour,
        )
        for curve, point, colour in points
        if len(points) <= _MOST_ROWS or point in (curve.points[0], curve.points[-1])
    ]
    caption = "Percentiles of the measured steps of rank 0, means over repeats."
    items = [(curve, point, point) for curve, point, _ in points]
    return Section(
        "distributions",
        "Distribution of step times",
        say("distributions", cell(_tail(place), "ratio").in_text, point_name(study, largest, place), fewest),
        key=f"p99 up to {seconds(max(_mean('p99_s')(point).value for _, point, _ in points))}",
        tables=kept(point_table(study, "step_percentiles", caption, _COLUMNS, items)),
        figures=[_histograms(study, shown[:_MOST_ROWS])],
    )


def _histograms(study: Study, shown: list[Distribution]) -> Figure:
    """On one axis, which ends near the 99th percentiles: rare slow steps do not compress the others."""
    high = 1.25 * max(np.percentile(each.values, 99) for each in shown)
    low = 0.95 * min(each.values.min() for each in shown)
    size, unit = scale("s", high)
    x = Axis(f"duration of a step ({unit.strip()})", low / size, high / size)
    rows = [each._replace(values=each.values / size) for each in shown]
    return Figure(
        "latency",
        "Step times",
        partial(histograms, rows, x, emulated=study.emulated),
        "; ".join(f"{each.name}: {each.text}" for each in shown),
        data=lambda: _data(study),
    )


def _data(study: Study) -> Table:
    """Durations of all measured steps."""
    columns = [
        Column("number", "number among the measured steps", "count"),
        Column("step_s", "duration", "s"),
    ]
    runs = [run for _, point in all_points(study) for run in point.runs]
    rows = ((run, list(enumerate(run.step_durations_s.tolist(), 1))) for run in runs)
    return run_table("step_times", "Durations of the measured steps of rank 0.", columns, rows)
