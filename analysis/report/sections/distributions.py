"""Distribution of step times: percentiles by size, and a histogram of each."""

from __future__ import annotations

from functools import partial

import numpy as np

from analysis.draw.distributions import Distribution, histograms
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
from analysis.stats.estimates import Estimate, Floats, geometric_mean, ratio_of_means
from analysis.units import cell, scale, seconds

ORDER = 110

_MOST_ROWS = 12
"""Histograms; of more sizes, the smallest and the largest of each configuration are shown."""


def _of_repeats(point: Point, name: str) -> Floats:
    return np.array(measured(point, f"step_time.{name}"))


def _mean(point: Point, name: str) -> Estimate:
    return of_steps(point, geometric_mean(_of_repeats(point, name)))


def _text(place: Place, name: str) -> str:
    return seconds(_mean(place.point, name).value)


def _longest(point: Point) -> Estimate:
    longest = _of_repeats(point, "max_s")
    return Estimate(longest.max(), None, None, len(longest), "maximum")


def _variation(point: Point) -> Estimate:
    return of_steps(point, ratio_of_means(_of_repeats(point, "std_s"), _of_repeats(point, "mean_s")))


def _tail(point: Point) -> Estimate:
    tails = geometric_mean(_of_repeats(point, "p99_s") / _of_repeats(point, "p50_s"))
    return of_steps(point, tails).mapped(partial(max, 1.0))


_COLUMNS = (
    *(
        Column(name, heading, "s", "percentiles", get=partial(_mean, name=name))
        for name, heading in (("p50_s", "median"), ("p95_s", "p95"), ("p99_s", "p99"))
    ),
    Column("max_s", "slowest", "s", "percentiles", get=_longest),
    Column("variation", "variation", "share", "variation", get=_variation),
    Column("steps", "number of steps", "count", get=lambda at: sum(measured(at, "measured_steps"))),
)


def build(study: Study) -> Section | None:
    """None without times of steps."""
    shown = [place for place in places(study) if None not in measured(place.point, "step_time")]
    if not shown:
        return None
    widest = max(shown, key=lambda place: _tail(place.point).value)
    fewest = min(measured(widest.point, "measured_steps"))
    return Section(
        "distributions",
        "Distribution of step times",
        say("distributions", cell(_tail(widest.point), "ratio").in_text, widest.name, fewest),
        key=f"p99 up to {seconds(max(_mean(place.point, 'p99_s').value for place in shown))}",
        tables=[
            size_table(
                study,
                "step_percentiles",
                "Percentiles of the measured steps of rank 0, means over repeats.",
                _COLUMNS,
                [(place, place.point) for place in shown],
            )
        ],
        figures=[_histograms(study, shown)],
    )


def _histograms(study: Study, shown: list[Place]) -> Figure:
    """On one axis, which ends near the 99th percentiles: rare slow steps do not compress the others."""
    rows = [
        Distribution(
            place.name,
            f"median {_text(place, 'p50_s')} · p99 {_text(place, 'p99_s')}",
            np.concatenate([run.step_durations_s for run in place.point.runs]),
            place.colour,
        )
        for place in shown
        if len(shown) <= _MOST_ROWS or place.point in (place.curve.points[0], place.curve.points[-1])
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
