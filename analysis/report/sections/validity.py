"""Validity: what a reader must know before using a number."""

from __future__ import annotations

from analysis.report import notices, stationarity_text
from analysis.report.run_records import run_overlaps
from analysis.report.section import Section
from analysis.study import Study
from analysis.units import plural


def build(study: Study) -> Section | None:
    """Notices on these runs, most serious first; None without a finished run."""
    if study.included.empty:
        return None
    found = notices.of_study(study, run_overlaps(study.overlaps, study.included))
    warnings = sum(notice.kind == "warning" for notice in found)
    runs, left = len(study.included), len(study.runs) - len(study.included)
    used = f"{plural(runs, 'run')} used" + (f", {left} left out" if left else "")
    verdict = f"{plural(warnings, 'warning')} to read before using a number" if warnings else "no warning"
    shown = [notice for notice in found if notice.kind != "emulated"]  # the banner on top says that
    stationary = stationarity_text.summary(study.statistics)
    return Section(
        "validity",
        "Validity",
        f"{used}; {verdict}.",
        notices=shown,
        paragraphs=[stationary] if stationary else [],
    )
