"""Sections of the report: each module with `ORDER`, its place on the page, and `build(study)`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from analysis.report.section import Section
from analysis.study import Study


def build_all(study: Study) -> list[Section]:
    """All sections that have something to show, in the order of the page."""
    names = [f"{__name__}.{found.name}" for found in pkgutil.iter_modules(__path__)]
    modules = sorted(map(import_module, names), key=lambda module: module.ORDER)
    return [section for module in modules if (section := module.build(study))]
