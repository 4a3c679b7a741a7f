"""Columns of a run about the checks of its nodes before the ranks started, and runs rejected for them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

COLUMNS: dict[str, str] = {
    "preflight": "string",  # passed, warned, refused, skipped; warned if any start had warnings
    "preflight_warning": "string",  # first problem of that start
    "preflight_s": "Float64",  # duration on node 0, over all attempts
    "rejected": "boolean",  # finished and measured, but left out by `reject_warned`
}


def preflight_columns(run: RunDir) -> dict[str, Any]:
    """Values of `COLUMNS` by `preflight.json` of all attempts.

    The steps of each attempt that started may be in the figures, so one with warnings counts more than later
    ones without. Nothing was trained after a refusal.
    """
    found = [record for attempt in run.attempts() if (record := read_json_or_none(attempt.preflight))]
    if not found:
        return {"rejected": False}
    started = [record for record in found if record.get("verdict") != "refused"]
    warned = (record for record in started if record.get("verdict") == "warned")
    shown = next(warned, (started or found)[-1])
    problems = shown.get("problems") or []
    return {
        "preflight": shown.get("verdict"),
        "preflight_warning": problems[0].get("message") if problems else None,
        "preflight_s": sum(float(record.get("seconds") or 0.0) for record in found),
        "rejected": False,
    }


def reject_warned(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `load` in which runs whose pre-flight had warnings are left out, with the reason in `note`.

    Runs without a pre-flight stay, as nothing is known against their nodes.

    Raises:
        ConfigError: no finished run would be left.
    """
    warned = table["included"] & (table["preflight"] == "warned").fillna(value=False)
    if not warned.any():
        return table
    if not (table["included"] & ~warned).any():
        first = table[warned].iloc[0]
        raise ConfigError(
            f"no run is left: all finished runs ({int(warned.sum())}) had warnings in their pre-flight, such "
            f"as {first['sweep']}/{first['run']}: {first['preflight_warning']}",
            at="--reject-warned",
        )
    reasons = "rejected for its pre-flight: " + table["preflight_warning"].fillna("a warning")
    earlier = table["note"].where(table["note"] == "", "; " + table["note"])
    return table.assign(
        included=table["included"] & ~warned,
        rejected=warned,
        note=table["note"].mask(warned, reasons + earlier),
    )
