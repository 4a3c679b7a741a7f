"""Sections of the report: each module with `SECTIONS`, functions of a study by their place on the page."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from analysis.report.section import Section
from analysis.study import Study


def build_all(study: Study) -> list[Section]:
    """All sections that have something to show, in the order of the page."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    builders = sorted(item for module in modules for item in module.SECTIONS.items())
    return [section for _, build in builders if (section := build(study))]
