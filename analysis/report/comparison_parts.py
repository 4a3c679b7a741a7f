"""Conclusion, table and figure of compared points; for sweeps and for strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from analysis.comparison import PointComparison
from analysis.draw.points import Guide, Points, points
from analysis.draw.style import Axis
from analysis.report.common import sentence
from analysis.report.section import Column, Figure, RunLink, Table, Value
from analysis.stats.estimates import CONFIDENCE
from analysis.stats.verdicts import EQUIVALENCE_MARGIN, Verdict
from analysis.units import interval, percent, times

VERDICTS: tuple[Verdict, ...] = ("faster", "slower", "equivalent", "unsettled")

Links = Callable[[PointComparison], Sequence[RunLink]]


def conclusion(compared: Sequence[PointComparison], name: Callable[[PointComparison], str]) -> str:
    """Points by verdict, each with its ratio: `faster at 4 nodes (1.12×); unsettled at 1 node (1.01×)`."""
    parts = []
    for verdict in VERDICTS:
        found = [each for each in compared if each.verdict == verdict]
        if found:
            named = ", ".join(f"{name(each)} ({times(each.ratio.value)})" for each in found)
            parts.append(f"{verdict}: {named}")
    return "; ".join(parts)


def verdict_text(compared: Sequence[PointComparison]) -> str:
    """Definition of the verdicts; without the tests where none could run."""
    if all(each.reason == "one repeat" for each in compared):
        return "Unsettled: one repeat, so not tested."
    return sentence(
        [
            f"Equivalent: the ratio of throughputs lies within {percent(EQUIVALENCE_MARGIN, 0)} of 1 (two "
            "one-sided t tests).",
            "Faster or slower: the ratio differs from 1 (Welch's t test on logarithms).",
            "Unsettled: neither; more repeats are needed.",
            f"All verdicts of this section together have a share of false findings of at most "
            f"{percent(1 - CONFIDENCE, 0)} (Benjamini and Hochberg).",
        ]
    )


def table(name: str, caption: str, compared: Sequence[PointComparison], links: Links) -> Table:
    """One row for each pair of points."""
    columns = [
        Column("curve", "configuration"),
        Column("base_curve", "compared with"),
        Column("size", "size", key=True),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("base_samples_per_s", "throughput compared with", "samples/s", "throughput"),
        Column("ratio", "ratio", "ratio", "throughput-ratio"),
        Column("verdict", "verdict", "", "verdict"),
        Column("reason", "reason"),
    ]
    several = len({each.curve.emulated for each in compared}) > 1
    rows: list[list[Value]] = [
        [
            each.curve.label + (" (emulated)" if each.curve.emulated and several else ""),
            each.base_curve.label,
            each.curve.name(each.point),
            each.point.samples_per_s,
            each.base.samples_per_s,
            each.ratio,
            each.verdict,
            each.reason,
        ]
        for each in compared
    ]
    emphasized = [index for index, each in enumerate(compared) if each.verdict in ("faster", "slower")]
    return Table(name, caption, columns, rows, [links(each) for each in compared], emphasized)


def figure(name: str, title: str, compared: Sequence[PointComparison]) -> Figure | None:
    """Ratio of throughputs by size with the margin of equivalence; None without a pair."""
    if not compared:
        return None
    pairs: dict[str, list[PointComparison]] = {}
    for each in compared:
        pairs.setdefault(f"{each.curve.label} / {each.base_curve.label}", []).append(each)
    shown = []
    for label, own in pairs.items():
        titles = [
            f"{label}, {each.curve.name(each.point)}: {times(each.ratio.value)} "
            f"{interval(each.ratio, 1, 2)}, {each.verdict}"
            for each in own
        ]
        sizes = [float(each.point.world_size) for each in own]
        shown.append(Points(label, sizes, [each.ratio for each in own], titles, joined=False))
    sizes = sorted({float(each.point.world_size) for each in compared})
    low = min([1 / 1.1, *(_bound(each, 0.5) for each in compared)])
    high = max([1.1, *(_bound(each, 2.0) for each in compared)])
    x = Axis("ranks", sizes[0] / 1.3, sizes[-1] * 1.3, True, sizes, "{:,.0f}".format)
    y = Axis("ratio of throughputs", 0.98 * low, 1.02 * high, form=times)
    drawing = partial(
        points,
        shown,
        x,
        y,
        [Guide((x.low, x.high), (1.0, 1.0), "equal")],
        band=(1 / (1 + EQUIVALENCE_MARGIN), 1 + EQUIVALENCE_MARGIN),
        emulated=any(each.curve.emulated for each in compared),
    )
    return Figure(name, title, drawing, "; ".join(t for each in shown for t in each.titles), data=name)


def _bound(each: PointComparison, factor: float) -> float:
    """The end of the interval on the side of `factor`, at most that far from the ratio."""
    ends = (each.ratio.low, each.ratio.high)
    if factor < 1:
        return max(ends[0] or each.ratio.value, factor * each.ratio.value)
    return min(ends[1] or each.ratio.value, factor * each.ratio.value)
