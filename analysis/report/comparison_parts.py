"""Conclusion, table and figure of compared points; for sweeps and for strategies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from analysis.comparison import PointComparison
from analysis.figures.ratio_figure import ratio_figure
from analysis.figures.style import curve_class
from analysis.report.cells import cell
from analysis.report.common import bars_text, sentence
from analysis.report.section import Column, Figure, RunLink, Table, Value
from analysis.stats.estimates import CONFIDENCE
from analysis.stats.verdicts import EQUIVALENCE_MARGIN, Verdict
from analysis.svg.lines import band, line, points
from analysis.svg.plot import LegendItem, Plot
from analysis.svg.scales import Axis
from analysis.units import interval, percent, plural, times

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
            plural(each.point.size, each.curve.unit),
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


def verdict_counts(compared: Sequence[PointComparison]) -> str:
    """Number of ratios by verdict, and their extent; of one ratio, its interval."""
    if len(compared) == 1:
        (only,) = compared
        return f"The ratio is {cell(only.ratio, 'ratio').in_text}: {only.verdict}."
    counts = Counter(each.verdict for each in compared)
    named = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    low, high = (times(end(each.ratio.value for each in compared)) for end in (min, max))
    return f"Verdicts on {len(compared)} ratios from {low} to {high}: {named}."


def figure(name: str, title: str, compared: Sequence[PointComparison]) -> Figure | None:
    """Ratio of throughputs by size with the margin of equivalence; None without a pair."""
    if not compared:
        return None
    pairs = list(dict.fromkeys((each.curve.label, each.base_curve.label) for each in compared))
    sizes = sorted({float(each.point.world_size) for each in compared})
    low = min([1 / 1.1, *(_bound(each, 0.5) for each in compared)])
    high = max([1.1, *(_bound(each, 2.0) for each in compared)])
    x = Axis("ranks", sizes[0] / 1.3, sizes[-1] * 1.3, True, sizes, "{:,.0f}".format)
    y = Axis("ratio of throughputs", 0.98 * low, 1.02 * high, form=times)
    description = "Ratio of throughputs by size. " + "; ".join(
        f"{each.curve.label} against {each.base_curve.label}, {plural(each.point.size, each.curve.unit)}: "
        f"{times(each.ratio.value)} {interval(each.ratio, 1, 2)}, {each.verdict}"
        for each in compared
    )
    legend = [
        LegendItem(_pair(*pair), curve_class(index), key=_pair(*pair)) for index, pair in enumerate(pairs)
    ]
    plot = Plot(name, title, description, x, y, [*legend, LegendItem("equal", "faint", "dashes")])
    edges = [x.low, x.high]
    plot.add(band(plot, edges, [1 / (1 + EQUIVALENCE_MARGIN)] * 2, [1 + EQUIVALENCE_MARGIN] * 2, "faint"))
    plot.add(line(plot, edges, [1.0, 1.0], "faint", style="dashes"))
    for index, pair in enumerate(pairs):
        own = [each for each in compared if (each.curve.label, each.base_curve.label) == pair]
        titles = [f"{_pair(*pair)}: {times(each.ratio.value)}, {each.verdict}" for each in own]
        at = [float(each.point.world_size) for each in own]
        plot.add(points(plot, at, [each.ratio for each in own], curve_class(index), titles, key=_pair(*pair)))
    bars = bars_text(each.ratio for each in compared)
    reading = sentence([bars, "In the band, the two are equivalent."])
    finding = verdict_counts(compared)
    return Figure(
        name, title, finding, plot.svg(), description, lambda: ratio_figure(compared), reading, data=name
    )


def _pair(label: str, base: str) -> str:
    return f"{label} / {base}"


def _bound(each: PointComparison, factor: float) -> float:
    """The end of the interval on the side of `factor`, at most that far from the ratio."""
    ends = (each.ratio.low, each.ratio.high)
    if factor < 1:
        return max(ends[0] or each.ratio.value, factor * each.ratio.value)
    return min(ends[1] or each.ratio.value, factor * each.ratio.value)
