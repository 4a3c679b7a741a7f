"""Strategies of one sweep, compared at equal sizes."""

from __future__ import annotations

from analysis import comparison
from analysis.comparison import PointComparison
from analysis.report import comparison_parts
from analysis.report.common import sources
from analysis.report.section import Section
from analysis.study import Study

ORDER = 40


def build(study: Study) -> Section | None:
    """Ratios of throughput against DDP; None unless a sweep varies `parallel.strategy`."""
    compared = comparison.strategies(study.curves)
    if not compared:
        return None
    bases = " and ".join(dict.fromkeys(_strategy(each.base_curve.axes) for each in compared))
    text = f"Against {bases}: {comparison_parts.conclusion(compared, _point)}."
    rows = comparison_parts.table(
        "strategies",
        f"Throughput of each strategy against {bases} at equal numbers of nodes and ranks.",
        compared,
        lambda each: [
            *sources(study, each.curve, each.point),
            *sources(study, each.base_curve, each.base),
        ],
    )
    figure = comparison_parts.figure("strategies", "Ratio of throughputs by strategy", compared)
    return Section(
        "strategies",
        "Strategies",
        text,
        paragraphs=[comparison_parts.verdict_text(compared)],
        tables=[rows],
        figures=[figure] if figure else [],
    )


def _point(each: PointComparison) -> str:
    return f"{_strategy(each.curve.axes)} on {each.curve.name(each.point)}"


def _strategy(axes: dict[str, object]) -> str:
    return str(axes[comparison.STRATEGY])
