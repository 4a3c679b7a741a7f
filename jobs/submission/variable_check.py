"""Errors of the lint of communication variables in `job.env`, before a run is submitted."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.fabric.findings import FindingSeverity, Setting
from jobs.fabric.lint import lint
from jobs.fabric.registry import registry
from sweeps.expand import RunPlan


def wrong_variables(runs: Sequence[RunPlan]) -> list[str]:
    """One line for each error: misspelt names, values out of range, values that fail on these nodes.

    The network of the nodes is not known yet; their agents judge it at the start of the run.
    """
    return list(dict.fromkeys(line for run in runs for line in _errors(run)))


def _errors(run: RunPlan) -> list[str]:
    settings = {
        name: Setting(name, value, "job.env")
        for name, value in run.config.job.env.items()
        if registry().is_judged(name)
    }
    return [
        f"job.env.{each.name}: {each.message}"
        for each in lint(settings, nodes=run.config.resources.nodes)
        if each.severity is FindingSeverity.ERROR and each.name in settings
    ]
