"""Section of compared points: verdicts, table and figure; for sweeps, strategies and configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from analysis.comparison import PointComparison, options
from analysis.draw.points import Guide, Points, points
from analysis.draw.style import Axis
from analysis.report.common import all_points, over_repeats, size_table, sources, unit_name
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.curves import Curve, Point
from analysis.stats.verdicts import EQUIVALENCE_MARGIN, Verdict
from analysis.study import Study
from analysis.units import cell, times

VERDICTS: tuple[Verdict, ...] = ("faster", "slower", "equivalent", "unsettled")

MOST_NAMED = 3
"""Groups of verdicts that the conclusion names."""

MOST_PAIRS = 8
"""Pairs of curves above which the figure is left out."""

Sides = Callable[[PointComparison], tuple[str, str]]
"""Names of both sides of a comparison."""


def labels(each: PointComparison) -> tuple[str, str]:
    return each.curve.label, each.base_curve.label


def section(
    name: str,
    title: str,
    study: Study,
    compared: Sequence[PointComparison],
    *,
    other: Study | None = None,
    sides: Sides = labels,
    paragraphs: Sequence[str] = (),
    tables: Sequence[Table] = (),
) -> Section:
    """A section named `name` on points of `study` against points of `other`, by default of the same study."""
    drawing = figure(name, "Ratio of throughputs", compared)
    pairs = {(id(each.curve), id(each.base_curve)) for each in compared}
    return Section(
        name,
        title,
        say("verdicts", verdict_groups(compared, sides), MOST_NAMED),
        key=times(compared[0].ratio.value) if len(compared) == 1 else "",
        paragraphs=[text for text in paragraphs if text],
        tables=[_table(name, study, other or study, compared, sides), *tables],
        figures=[drawing] if drawing and len(pairs) <= MOST_PAIRS else [],
    )


def verdict_groups(compared: Sequence[PointComparison], sides: Sides = labels) -> list[dict[str, Any]]:
    """Verdicts of one configuration on others at the same sizes, and the extent of their ratios."""
    sizes: dict[tuple[Verdict, str, str], list[PointComparison]] = {}
    for each in compared:
        sizes.setdefault((each.verdict, *sides(each)), []).append(each)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for (verdict, side, base), members in sorted(sizes.items(), key=lambda item: VERDICTS.index(item[0][0])):
        at = [size_name(each) for each in members]
        reason = members[0].reason
        empty = {"verdict": verdict, "side": side, "bases": [], "at": at, "ratios": [], "reason": reason}
        group = groups.setdefault((verdict, side, reason, *at), empty)
        group["bases"].append(base)
        group["ratios"] += [each.ratio for each in members]
    return list(groups.values())


def size_name(each: PointComparison) -> str:
    return each.curve.name(each.point)


def _table(name: str, study: Study, other: Study, compared: Sequence[PointComparison], sides: Sides) -> Table:
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
    rows: list[list[Value]] = []
    for each in compared:
        side, base = sides(each)
        rates: list[Value] = [each.point.samples_per_s, each.base.samples_per_s, each.ratio]
        side += " (emulated)" if each.curve.emulated and several else ""
        rows.append([side, base, size_name(each), *rates, each.verdict, each.reason])
    links = [[*sources(each.point), *sources(each.base)] for each in compared]
    emphasized = [index for index, each in enumerate(compared) if each.verdict in ("faster", "slower")]
    caption = "Throughput at equal numbers of nodes and ranks; ratios above 1: the first is faster."
    return Table(name, caption, columns, rows, links, emphasized)


def option_tables(study: Study, name: str, key: str) -> list[Table]:
    """Throughput, memory, loss and speed-up of each value of a swept option; none where it is not swept."""
    compared = options(study.curves, key)
    if not compared:
        return []
    bases = " or ".join(dict.fromkeys(str(each.base_curve.axes[key]) for each in compared))
    ratios: dict[int, Value] = {id(each.base): 1.0 for each in compared}
    ratios |= {id(each.point): each.ratio for each in compared}
    columns = [
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("speedup", f"speed-up over {bases}", "ratio", "throughput-ratio"),
        Column("peak_bytes", "memory", "B", "peak-memory"),
        Column("train_loss", "training loss", "loss", "loss"),
        Column("valid_loss", "validation loss", "loss", "loss"),
    ]
    rows: list[tuple[Curve, Point, list[Value]]] = []
    for curve, point in all_points(study):
        if id(point) in ratios:
            runs = () if curve.emulated else point.runs  # emulated models learn nothing
            losses = [
                over_repeats(point, [run.final.get(name) for run in runs])
                for name in ("train_loss", "valid_loss")
            ]
            memory = point.peak_memory_bytes
            rows.append((curve, point, [point.samples_per_s, ratios[id(point)], memory, *losses]))
    return [size_table(study, name, "Each value of the option, by size; memory of a rank.", columns, rows)]


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
            f"{label}, {size_name(each)}: {cell(each.ratio, 'ratio').line}, {each.verdict}" for each in own
        ]
        sizes = [float(each.point.size) for each in own]
        shown.append(Points(label, sizes, [each.ratio for each in own], titles, joined=False))
    sizes = sorted({float(each.point.size) for each in compared})
    low = min([1 / 1.1, *(_bound(each, 0.5) for each in compared)])
    high = max([1.1, *(_bound(each, 2.0) for each in compared)])
    x = Axis(
        unit_name(each.curve for each in compared),
        sizes[0] / 1.3,
        sizes[-1] * 1.3,
        True,
        sizes,
        "{:,.0f}".format,
    )
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
