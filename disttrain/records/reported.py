"""Figures that a script of one's own reports in `metrics.json`. Standard library only."""

from __future__ import annotations

import math

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir


def read_reported(run: RunDir) -> dict[str, float]:
    """The numbers of a `metrics.json` that a script wrote, by name; empty without one.

    A `metrics.json` of the telemetry has a `schema_version`. Other values than finite numbers are left out.
    """
    values = read_json_or_none(run.metrics)
    if not isinstance(values, dict) or "schema_version" in values:
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
