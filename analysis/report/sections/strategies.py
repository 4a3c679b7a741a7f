"""Strategies of one sweep, compared at equal sizes."""

from __future__ import annotations

from analysis import comparison
from analysis.report import comparison_parts
from analysis.report.section import Section
from analysis.study import Study

ORDER = 40


def build(study: Study) -> Section | None:
    """Ratios of throughput against DDP; None unless a sweep varies `parallel.strategy`."""
    compared = comparison.options(study.curves)
    if not compared:
        return None
    tables = comparison_parts.option_tables(study, "strategy_sizes", comparison.STRATEGY)
    return comparison_parts.section("strategies", "Strategies", study, compared, tables=tables)
