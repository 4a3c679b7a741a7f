"""Columns of a run about the checks of its nodes before the ranks started (`preflight.json`)."""

from __future__ import annotations

from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

COLUMNS: dict[str, str] = {
    "preflight": "string",  # verdict on the nodes of the last attempt: passed, warned, refused, skipped
    "preflight_warning": "string",  # first problem of the last attempt
    "preflight_s": "Float64",  # duration on node 0, over all attempts
}


def preflight_columns(run: RunDir) -> dict[str, Any]:
    """Values of `COLUMNS`; none of a run without a pre-flight."""
    found = [record for attempt in run.attempts() if (record := read_json_or_none(attempt.preflight))]
    if not found:
        return {}
    problems = found[-1].get("problems") or []
    return {
        "preflight": found[-1].get("verdict"),
        "preflight_warning": problems[0].get("message") if problems else None,
        "preflight_s": sum(float(record.get("seconds") or 0.0) for record in found),
    }
