"""Sections of the report, one module each, in the order of the page."""

from __future__ import annotations

from analysis.report.section import Section
from analysis.report.sections import (
    batch_size,
    bottlenecks,
    communication,
    comparison,
    composition,
    configurations,
    cost,
    distributions,
    fabric,
    goodput,
    memory,
    pop,
    reproduction,
    runs,
    scaling,
    stragglers,
    strategies,
    targets,
    traffic,
    training,
    utilization,
    waterfall,
)
from analysis.study import Study

ORDER = (
    targets,
    scaling,
    comparison,
    strategies,
    configurations,
    waterfall,
    composition,
    bottlenecks,
    communication,
    stragglers,
    distributions,
    utilization,
    memory,
    traffic,
    fabric,
    training,
    batch_size,
    cost,
    goodput,
    pop,
    runs,
    reproduction,
)


def build_all(study: Study) -> list[Section]:
    """All sections that have something to show."""
    return [section for module in ORDER if (section := module.build(study)) is not None]
