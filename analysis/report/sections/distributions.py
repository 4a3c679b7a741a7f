"""Distribution of step times: percentiles by size, and a histogram of each."""

from __future__ import annotations

from functools import partial

import numpy as np

from analysis.draw.distributions import Distribution, histograms
from analysis.draw.style import Axis
from analysis.report.common import (
    all_points,
    coloured_points,
    of_steps,
    point_name,
    run_table,
    size_columns,
    sources,
)
from analysis.report.section import Column, Figure, RunLink, Section, Table, Value
from analysis.report.sentences import say
from analysis.stats.estimates import Estimate, geometric_mean, ratio_of_means
from analysis.study import Study
from analysis.units import cell, scale, seconds

ORDER = 110

_MOST_ROWS = 12
"""Histograms; of more sizes, the smallest and the largest of each configuration are shown."""


def build(study: Study) -> Section | None:
    """None without step records."""
    rows: list[list[Value]] = []
    links: list[list[RunLink]] = []
    tails: list[tuple[float, str, str, int]] = []
    shown: list[Distribution] = []
    for curve, point, colour in coloured_points(study):
        repeats = [times for run in point.runs if (times := run.step_durations_s).size]
        if not repeats:
            continue
        pooled = np.concatenate(repeats)
        p50, p95, p99 = (
            of_steps(point, geometric_mean([np.percentile(times, at) for times in repeats]))
            for at in (50, 95, 99)
        )
        longest = Estimate(float(pooled.max()), None, None, len(repeats), "maximum")
        variation = of_steps(point, ratio_of_means(list(map(np.std, repeats)), list(map(np.mean, repeats))))
        size = [column.of((curve, point)) for column in size_columns(study)]
        rows.append([*size, p50, p95, p99, longest, variation, pooled.size])
        links.append(sources(point))
        ratios = [np.percentile(times, 99) / np.median(times) for times in repeats]
        # the percentile is above the median
        ratio = of_steps(point, geometric_mean(ratios)).mapped(partial(max, 1.0))
        name, fewest = point_name(study, curve, point), min(times.size for times in repeats)
        tails.append((ratio.value, cell(ratio, "ratio").in_text, name, fewest))
        if len(all_points(study)) <= _MOST_ROWS or point in (curve.points[0], curve.points[-1]):
            text = f"median {seconds(p50.value)} · p99 {seconds(p99.value)}"
            shown.append(Distribution(name, text, pooled, colour))
    if not rows:
        return None
    highest, tail, place, fewest = max(tails, key=lambda each: each[0])
    columns = [
        *size_columns(study),
        Column("p50_s", "median", "s", "percentiles"),
        Column("p95_s", "p95", "s", "percentiles"),
        Column("p99_s", "p99", "s", "percentiles"),
        Column("max_s", "slowest", "s", "percentiles"),
        Column("variation", "variation", "share", "variation"),
        Column("steps", "number of steps", "count"),
    ]
    caption = "Percentiles of the measured steps of rank 0, means over repeats."
    return Section(
        "distributions",
        "Distribution of step times",
        say("distributions", tail, place, fewest),
        key=f"p99 {highest:.2f}\N{MULTIPLICATION SIGN} the median",
        tables=[Table("step_percentiles", caption, columns, rows, links)],
        figures=[_histograms(study, shown[:_MOST_ROWS])],
    )


def _histograms(study: Study, shown: list[Distribution]) -> Figure:
    """On one axis, which ends near the 99th percentiles: rare slow steps do not compress the others."""
    high = min(
        1.25 * max(np.percentile(each.values, 99) for each in shown),
        1.02 * max(each.values.max() for each in shown),
    )
    size, unit = scale("s", high)
    low = 0.95 * min(each.values.min() for each in shown)
    x = Axis(f"duration of a step ({unit.strip()})", low / size, high / size)
    rows = [each._replace(values=each.values / size) for each in shown]
    alt = "; ".join(f"{each.name}: {each.text}" for each in shown)
    drawing = partial(histograms, rows, x, emulated=study.emulated)
    return Figure("latency", "Step times", drawing, alt, data=lambda: _data(study))


def _data(study: Study) -> Table:
    """Durations of all measured steps."""
    columns = [
        Column("number", "number among the measured steps", "count"),
        Column("step_s", "duration", "s"),
    ]
    runs = (run for _, point in all_points(study) for run in point.runs)
    rows = ((run, list(enumerate(run.step_durations_s.tolist(), 1))) for run in runs)
    return run_table("step_times", "Durations of the measured steps of rank 0.", columns, rows)
