"""Comparison with another sweep, and of the configurations of one sweep: which is faster, curve by curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analysis.comparison import PointComparison, against, options
from analysis.comparison import configurations as against_fastest
from analysis.draw.charts import Guide
from analysis.draw.style import size_axis
from analysis.read.differences import PARTS, differences, unrecorded
from analysis.report.common import (
    THROUGHPUT,
    Column,
    Section,
    Study,
    item_table,
    place_of,
    points_figure,
    say,
    size_table,
    unit_name,
)
from analysis.results.curves import Curve
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from analysis.units import times
from disttrain.config.config_tree import config_fields

MOST_PAIRS = 8
"""Pairs of curves above which the figure is left out."""
_COLUMNS = (
    Column("base_curve", "compared with", get="base_curve.label"),
    replace(THROUGHPUT, get="point.samples_per_s"),
    replace(
        THROUGHPUT, name="base_samples_per_s", heading="throughput compared with", get="base.samples_per_s"
    ),
    Column("ratio", "ratio", "ratio", "throughput-ratio"),
    Column("verdict", "verdict", "", "verdict"),
    Column("reason"),
)


def comparison(study: Study) -> Section | None:
    """Ratios of throughput, and differences in config, code and environment; None without another sweep."""
    other = study.against
    if other is None:
        return None
    here, there = _names(study, other)
    ours, theirs = _named(study, here), _named(other, there)
    compared = against(ours, theirs)
    if not compared:
        return Section("comparison", "Comparison", say("nothing_compared", there))
    known = {curve.label for each in compared for curve in (each.curve, each.base_curve)}
    alone = [curve.label for curve in (*ours, *theirs) if curve.label not in known]
    runs = [run for each in compared for run in each.point.runs]
    base_runs = [run for each in compared for run in each.base.runs]
    found = differences(runs, base_runs)
    absent = {here: unrecorded(runs), there: unrecorded(base_runs)}
    recorded = [part for part in PARTS if part not in (*absent[here], *absent[there])]
    names = {"part": "part", "name": "property", "value": here, "base": there}
    columns = [Column(*name) for name in names.items()]
    section = compared_section("comparison", "Comparison", study, compared)
    return replace(
        section,
        paragraphs=[say("compared_records", found, recorded, absent, here, there), say("unmatched", alone)],
        tables=[
            *section.tables,
            item_table("differences", f"Recorded differences from {there}.", columns, found),
        ],
    )


def compared_section(name: str, title: str, study: Study, compared: Sequence[PointComparison]) -> Section:
    """Verdicts on points of `study`, as sentence, table and figure."""
    caption = "Throughput at equal numbers of nodes and ranks; ratios above 1: the first is faster."
    items = [(place_of(study, each.point)._replace(curve=each.curve), each) for each in compared]
    rows = [
        (f"{each.curve.label} / {each.base_curve.label}", each.size, each.point.size, each.ratio)
        for each in compared
    ]
    x = size_axis(unit_name(each.curve for each in compared), [each.point.size for each in compared])
    heading, margin = "ratio of throughputs", 1 + EQUIVALENCE_MARGIN
    figure = points_figure(
        study,
        name,
        heading.capitalize(),
        rows,
        "ratio",
        x,
        heading,
        levels=(1 / 1.1, 1.1),
        guides=[Guide((x.low, x.high), (1.0, 1.0), "equal")],
        band=(1 / margin, margin),
    )
    return Section(
        name,
        title,
        verdict_text(compared),
        key=times(compared[0].ratio.value) if len(compared) == 1 else "",
        tables=[size_table(study, name, caption, _COLUMNS, items)],
        figures=[figure] if len({pair for pair, *_ in rows}) <= MOST_PAIRS else [],
    )


def verdict_text(compared: Sequence[PointComparison]) -> str:
    """Verdicts on pairs of configurations, at all sizes with this verdict; the settled ones first."""
    groups: dict[tuple[str, ...], list[PointComparison]] = {}
    for each in sorted(compared, key=lambda each: each.verdict == "unsettled"):
        pair = each.verdict, each.curve.label, each.base_curve.label, each.reason
        groups.setdefault(pair, []).append(each)
    return say("verdicts", [*groups.items()], 3)


def _named(study: Study, name: str) -> list[Curve]:
    """The curves, with the name of the sweep in their labels."""
    return [
        replace(curve, label=name if curve.label in study.sweeps else f"{curve.label} of {name}")
        for curve in study.curves
    ]


def _names(*studies: Study) -> list[str]:
    """Names of the sweeps of both sides; their folders where a name is on both."""
    sides = [sorted({run.folder.path.parent for run in each.runs}) for each in studies]
    again = set.intersection(*({folder.name for folder in side} for side in sides))
    return [", ".join(str(folder) if again else folder.name for folder in side) for side in sides]


def configurations(study: Study) -> Section | None:
    """None unless a sweep has configurations."""
    compared = against_fastest(study.leading_curve, study.curves) if study.curves else []
    if not compared:
        return None
    section = compared_section("configurations", "Configurations", study, compared)
    swept = study.leading_curve.axes
    meanings = [f"{key}: {field.description}" for key, field in config_fields() if key in swept]
    return replace(section, paragraphs=meanings)


def option_speedup(study: Study, key: str) -> Column:
    """Each value of an option against its base value, where all else is equal."""
    compared = options(study.curves, key)
    ratios = {id(each.point): each.ratio for each in compared}
    bases = " or ".join(dict.fromkeys(str(each.base_curve.axes[key]) for each in compared))
    name = f"{key.rpartition('.')[2]}_speedup"
    heading = f"speed-up over {bases}"
    return Column(name, heading, "ratio", "throughput-ratio", get=lambda point: ratios.get(id(point)))


SECTIONS = {30: comparison, 50: configurations}
