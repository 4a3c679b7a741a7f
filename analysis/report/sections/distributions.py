"""Distribution of step times: histogram, ECDF and percentiles by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.efficiency import Curve, Point
from analysis.figures.step_time_figures import ecdf_figure, latency_figure
from analysis.figures.style import ONE_COLUMN
from analysis.report.cells import cell
from analysis.report.common import (
    RUN_COLUMNS,
    coloured_points,
    frame_table,
    of_steps,
    point_legend,
    point_name,
    points_text,
    size_columns,
    size_dashes,
    size_legend,
    size_values,
    sources,
)
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.stats.estimates import Estimate, geometric_mean, ratio_of_means
from analysis.study import Study
from analysis.svg.distributions import ecdf_points, histogram
from analysis.svg.lines import line
from analysis.svg.plot import Plot
from analysis.svg.scales import Axis
from analysis.units import percent, plural, seconds, time_scale

_BINS = 48
_SLOW = 1.25
"""Ratio to the median above which the caption of the histograms calls a step slow."""
_STEPS_OF_P99 = 100
"""Steps of a repeat from which the 99th percentile has a step beyond it."""
_MOST_HISTOGRAMS = 24
_ROW_HEIGHT = 80.0
"""Of a histogram, in units of the view box."""


@dataclass(frozen=True)
class SizeSteps:
    """Measured steps of rank 0 at one size."""

    curve: Curve
    point: Point
    colour: str
    repeats: Sequence[NDArray[np.float64]]
    """Durations in seconds of each repeat that has any."""

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """Of all repeats."""
        return np.concatenate(self.repeats)

    def percentile_s(self, at: float) -> Estimate:
        """Geometric mean over repeats of this percentile of each."""
        return of_steps(self.point, geometric_mean([np.percentile(times, at) for times in self.repeats]))

    @cached_property
    def tail(self) -> Estimate:
        """p99 / median, geometric mean over repeats."""
        ratios = [np.percentile(times, 99) / np.median(times) for times in self.repeats]
        return of_steps(self.point, geometric_mean(ratios))

    @property
    def longest_s(self) -> Estimate:
        return Estimate(float(self.times.max()), None, None, len(self.repeats), "maximum")

    @property
    def variation(self) -> Estimate:
        """Mean standard deviation / mean duration, over repeats."""
        spreads, means = ([part(times) for times in self.repeats] for part in (np.std, np.mean))
        return of_steps(self.point, ratio_of_means(spreads, means))


def build(study: Study) -> Section | None:
    """Histograms, ECDF and table; None without step records."""
    found = _sizes(study)
    if not found:
        return None
    rows: list[list[Value]] = [
        [
            *size_values(study, each.curve, each.point),
            *(each.percentile_s(at) for at in (50, 95, 99)),
            each.longest_s,
            each.variation,
            each.times.size,
        ]
        for each in found
    ]
    table = Table(
        "step_percentiles",
        "Percentiles of the measured steps of rank 0 in each repeat, means over repeats; the slowest step of "
        "all repeats.",
        [
            *size_columns(study),
            Column("p50_s", "median", "s", "percentiles"),
            Column("p95_s", "p95", "s", "percentiles"),
            Column("p99_s", "p99", "s", "percentiles"),
            Column("max_s", "slowest", "s", "percentiles"),
            Column("variation", "variation", "share", "variation"),
            Column("steps", "number of steps", "count"),
        ],
        rows,
        [sources(study, each.curve, each.point) for each in found],
    )
    conclusion = _conclusion(study, found)
    data = cache(lambda: _data(study, found))
    figures = [_ecdf(study, found, data), _histograms(study, found, data)]
    return Section("distributions", "Distribution of step times", conclusion, tables=[table], figures=figures)


def _sizes(study: Study) -> list[SizeSteps]:
    found = []
    for curve, point, colour in coloured_points(study):
        runs = [study.step_times_s.get((curve.sweep, run)) for run in point.runs]
        known = [times for times in runs if times is not None and times.size]
        if known:
            found.append(SizeSteps(curve, point, colour, known))
    return found


def _conclusion(study: Study, found: Sequence[SizeSteps]) -> str:
    tails = [each.tail.value for each in found]
    most = found[int(np.argmax(tails))]
    shown = cell(most.tail, "ratio")
    interval = f" {shown.interval}" if shown.interval.startswith("[") else ""
    steps = min(times.size for times in most.repeats)
    few = "" if steps >= _STEPS_OF_P99 else f" With {plural(steps, 'step')}, it rests on the slowest step."
    return (
        f"The 99th percentile is {shown.text}{interval} the median on "
        f"{point_name(study, most.curve, most.point)}"
        + (", the largest such ratio." if _is_largest(most.tail.value, tails) else ".")
        + few
    )


def _is_largest(value: float, values: Sequence[float]) -> bool:
    """Whether a value of several exceeds all others: not so in a tie."""
    return len(values) > 1 and sum(each >= value for each in values) == 1


def _edge_s(found: Sequence[SizeSteps]) -> float:
    """Right edge of the axis: rare slow steps do not compress the others."""
    times = [each.times for each in found]
    return min(
        1.25 * max(np.percentile(each, 99) for each in times), 1.02 * max(each.max() for each in times)
    )


def _medians(study: Study, found: Sequence[SizeSteps]) -> str:
    """Lowest and highest median."""
    fast, slow = (pick(found, key=lambda each: each.percentile_s(50).value) for pick in (min, max))
    low, high = (cell(each.percentile_s(50), "s").in_text for each in (fast, slow))
    first = f"{low} on {point_name(study, fast.curve, fast.point)}"
    if fast is slow:
        return f"Half of the steps take at most {first}."
    return f"Medians lie between {first} and {high} on {point_name(study, slow.curve, slow.point)}."


def _slow_steps(study: Study, found: Sequence[SizeSteps]) -> str:
    """The size with the most steps beyond `_SLOW` times its median."""
    shares = [float((each.times > _SLOW * np.median(each.times)).mean()) for each in found]
    most = int(np.argmax(shares))
    each = found[most]
    if shares[most] == 0:
        return f"No step takes more than {_SLOW:g} times the median of its size."
    slow = int((each.times > _SLOW * np.median(each.times)).sum())
    text = (
        f"{slow} of {plural(each.times.size, 'step')} {'takes' if slow == 1 else 'take'} more than {_SLOW:g}"
    )
    tied = sum(share == shares[most] for share in shares)
    if tied == len(found) > 1:
        return f"{text} times the median at each of {points_text(study, tied)}."
    if tied > 1:
        return (
            f"{text} times the median at {tied} of {points_text(study, len(found))}, the largest such share."
        )
    largest = ", the largest such share" if len(found) > 1 else ""
    return f"{text} times the median on {point_name(study, each.curve, each.point)}{largest}."


def _ecdf(study: Study, found: Sequence[SizeSteps], data: Callable[[], Table]) -> Figure:
    edge_s = _edge_s(found)
    factor, unit = time_scale(edge_s)
    low = 0.95 * min(float(each.times.min()) for each in found) * factor
    x = Axis(f"duration of a step ({unit})", low, edge_s * factor)
    y = Axis("share of steps", 0.0, 1.0, form=lambda value: percent(value, 0))
    description = "; ".join(
        f"{point_name(study, each.curve, each.point)}: median {seconds(each.percentile_s(50).value)}, p99 "
        f"{seconds(each.percentile_s(99).value)}"
        for each in found
    )
    legend = [*point_legend(study), *size_legend(study)]
    plot = Plot("ecdf", "Distribution of step times", description, x, y, legend)
    for each in found:
        values, shares = ecdf_points(each.times * factor)
        name = point_name(study, each.curve, each.point)
        key = name if len(study.curves) == 1 else each.curve.label
        dashes = size_dashes(study, each.curve, each.point)
        plot.add(line(plot, values, shares, each.colour, title=name, key=key, dashes=dashes))
    return Figure(
        "ecdf",
        "Cumulative distribution",
        _medians(study, found),
        plot.svg(),
        description,
        lambda: ecdf_figure(study.curves, study.step_times_s),
        "Share of steps up to each duration: a steep line is a steady step, a long tail to "
        "the right are slow steps.",
        data=data,
    )


def _data(study: Study, found: Sequence[SizeSteps]) -> Table:
    """Durations of all measured steps, which both figures show."""
    frames = [
        pd.DataFrame({"step_s": times, "number": np.arange(1, len(times) + 1)}).assign(
            sweep=each.curve.sweep, run=run
        )
        for each in found
        for run in each.point.runs
        if (times := study.step_times_s.get((each.curve.sweep, run))) is not None
    ]
    columns = [
        *RUN_COLUMNS,
        Column("number", "number among the measured steps", "count"),
        Column("step_s", "duration", "s"),
    ]
    caption = "Durations of the measured steps of rank 0, in order."
    return frame_table("step_times", caption, columns, pd.concat(frames))


def _with_histogram(found: Sequence[SizeSteps]) -> list[SizeSteps]:
    """All sizes; of too many, the smallest and the largest of as many configurations as fit."""
    if len(found) <= _MOST_HISTOGRAMS:
        return list(found)
    shown: list[SizeSteps] = []
    for _, sizes in groupby(found, key=lambda each: id(each.curve)):
        first, *rest = sizes
        ends = [first, *rest[-1:]]
        if len(shown) + len(ends) > _MOST_HISTOGRAMS:
            break
        shown += ends
    return shown


def _left_out(found: Sequence[SizeSteps], shown: Sequence[SizeSteps]) -> str:
    """The rule by which only some sizes have a histogram; empty where all have one."""
    if len(shown) == len(found):
        return ""
    every, some = (len({id(each.curve) for each in sizes}) for sizes in (found, shown))
    of = "each configuration" if every == some else f"the first {some} of {every} configurations"
    return f" Of {len(found)} sizes, {len(shown)} are shown: the smallest and largest of {of}."


def _histograms(study: Study, found: Sequence[SizeSteps], data: Callable[[], Table]) -> Figure:
    """One row for each size, in two columns where there are many."""
    shown = _with_histogram(found)
    edge_s = _edge_s(shown)
    factor, unit = time_scale(edge_s)
    low = 0.95 * min(float(each.times.min()) for each in shown) * factor
    x = Axis(f"duration of a step ({unit})", low, edge_s * factor)
    height = -(-len(shown) // (2 if len(shown) > ONE_COLUMN else 1))
    drawn = [
        _column(study, shown[first : first + height], x, f"latency-{first}", factor)
        for first in range(0, len(shown), height)
    ]
    times = {
        (each.curve.sweep, run): study.step_times_s[each.curve.sweep, run]
        for each in shown
        for run in each.point.runs
        if (each.curve.sweep, run) in study.step_times_s
    }
    return Figure(
        "latency",
        "Histogram of step times",
        _slow_steps(study, found),
        "".join(drawn),
        "Histogram of step durations, one row for each size",
        lambda: latency_figure(study.curves, times),
        "A second peak is a second kind of step (a checkpoint, a validation, a disturbance). All repeats "
        f"pooled; the last bar also counts steps beyond the right edge.{_left_out(found, shown)}",
        data=data,
    )


def _column(study: Study, shown: Sequence[SizeSteps], x: Axis, name: str, factor: float) -> str:
    """Histograms below each other on one axis; `factor` is from seconds to its unit."""
    edges = np.linspace(x.low, x.high, _BINS + 1)
    frame = Plot(name, "Histogram of step times", "One row for each size.", x, Axis("", 0, 1))
    frame.left, frame.grid, frame.categories = 8.0, "", True
    frame.height = 12 + _ROW_HEIGHT * len(shown) + 44
    for index, each in enumerate(shown):
        size = point_name(study, each.curve, each.point)
        counts, _ = np.histogram(np.clip(each.times * factor, edges[0], edges[-1]), edges)
        titles = [
            f"{size}: {plural(int(count), 'step')} from {seconds(start / factor)} to {seconds(end / factor)}"
            for count, start, end in zip(counts, edges[:-1], edges[1:], strict=True)
        ]
        row = Plot("", "", "", x, Axis("", 0, float(counts.max())), left=frame.left, categories=True)
        bottom = 12 + _ROW_HEIGHT * (index + 1)
        row.height = bottom + 42
        row.head = bottom - _ROW_HEIGHT + 30
        frame.add(histogram(row, edges, counts, each.colour, titles))
        p50, p99 = (seconds(each.percentile_s(at).value) for at in (50, 99))
        frame.caption(size, f"median {p50} · p99 {p99}", bottom - _ROW_HEIGHT + 22)
        frame.rule(bottom)
    return frame.svg()
