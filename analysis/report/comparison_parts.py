"""Section of compared points: verdicts, table and figure; for sweeps, strategies and configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from analysis.comparison import PointComparison, options
from analysis.draw.points import Guide, Points, extent
from analysis.draw.style import size_axis, value_axis
from analysis.report.common import all_points, kept, over_repeats, point_table, points_figure, unit_name
from analysis.report.section import Column, Figure, Section, Table, Value
from analysis.report.sentences import say
from analysis.results.curves import Point
from analysis.stats.estimates import Estimate
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
    sides: Sides = labels,
    paragraphs: Sequence[str] = (),
    tables: Sequence[Table] = (),
) -> Section:
    """A section named `name` on compared points."""
    return Section(
        name,
        title,
        say("verdicts", verdict_groups(compared, sides), MOST_NAMED),
        key=times(compared[0].ratio.value) if len(compared) == 1 else "",
        paragraphs=kept(*paragraphs),
        tables=[_table(name, compared, sides), *tables],
        figures=kept(_figure(study, name, compared)),
    )


def verdict_groups(compared: Sequence[PointComparison], sides: Sides = labels) -> list[dict[str, Any]]:
    """Verdicts of one configuration on another at several sizes, and their ratios."""
    groups: dict[tuple[str, ...], list[PointComparison]] = {}
    for each in sorted(compared, key=lambda each: VERDICTS.index(each.verdict)):
        groups.setdefault((each.verdict, *sides(each), each.reason), []).append(each)
    return [
        {
            "verdict": verdict,
            "side": side,
            "base": base,
            "at": [each.curve.name(each.point) for each in members],
            "ratios": [each.ratio for each in members],
            "reason": reason,
        }
        for (verdict, side, base, reason), members in groups.items()
    ]


def _table(name: str, compared: Sequence[PointComparison], sides: Sides) -> Table:
    """One row for each pair of points."""
    columns = [
        Column("curve", "configuration"),
        Column("base_curve", "compared with"),
        Column("size", "size", key=True),
        Column("samples_per_s", "throughput", "samples/s", "throughput"),
        Column("base_samples_per_s", "compared with", "samples/s", "throughput"),
        Column("ratio", "ratio", "ratio", "throughput-ratio"),
        Column("verdict", "verdict", "", "verdict"),
        Column("reason", "reason"),
    ]
    mixed = len({each.curve.emulated for each in compared}) > 1
    rows: list[list[Value]] = []
    for each in compared:
        side, base = sides(each)
        size = each.curve.name(each.point) + (" (emulated)" if each.curve.emulated and mixed else "")
        rates: list[Value] = [each.point.samples_per_s, each.base.samples_per_s, each.ratio]
        rows.append([side, base, size, *rates, each.verdict, each.reason])
    differing = [index for index, each in enumerate(compared) if each.verdict in ("faster", "slower")]
    caption = "Throughput at equal numbers of nodes and ranks; ratios above 1: the first is faster."
    return Table(name, caption, columns, rows, emphasized=differing)


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
        Column(
            "speedup", f"speed-up over {bases}", "ratio", "throughput-ratio", get=lambda at: ratios[id(at)]
        ),
        Column("peak_memory_bytes", "memory", "B", "peak-memory"),
        Column("train_loss", "training loss", "loss", "loss", get=partial(_loss, "train_loss")),
        Column("valid_loss", "validation loss", "loss", "loss", get=partial(_loss, "valid_loss")),
    ]
    points = [(curve, point, point) for curve, point in all_points(study) if id(point) in ratios]
    caption = "Each value of the option, by size; memory of a rank."
    return kept(point_table(study, name, caption, columns, points))


def _loss(name: str, point: Point) -> Estimate | None:
    """At the end of the training; emulated models learn nothing."""
    return over_repeats(point, [run.final.get(name) for run in point.runs if not run.emulated])


def _figure(study: Study, name: str, compared: Sequence[PointComparison]) -> Figure | None:
    """Ratio of throughputs by size with the margin of equivalence; None of many pairs."""
    pairs: dict[str, list[PointComparison]] = {}
    for each in compared:
        pairs.setdefault(" / ".join(labels(each)), []).append(each)
    if len(pairs) > MOST_PAIRS:
        return None
    shown = []
    for label, members in pairs.items():
        sizes, ratios = [float(each.point.size) for each in members], [each.ratio for each in members]
        texts = [
            f"{label}, {each.curve.name(each.point)}: {cell(each.ratio, 'ratio').line}, {each.verdict}"
            for each in members
        ]
        shown.append(Points(label, sizes, ratios, texts, joined=False))
    low, high = extent([each.ratio for each in compared])
    x = size_axis(unit_name(each.curve for each in compared), [each.point.size for each in compared])
    y = value_axis("ratio of throughputs", min(low, 0.9), max(high, 1.1), form=times)
    margin = (1 / (1 + EQUIVALENCE_MARGIN), 1 + EQUIVALENCE_MARGIN)
    equal = Guide((x.low, x.high), (1.0, 1.0), "equal")
    return points_figure(study, name, "Ratio of throughputs", shown, x, y, name, guides=[equal], band=margin)
