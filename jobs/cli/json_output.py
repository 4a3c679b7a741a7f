"""JSON of `--json`: one document on stdout."""

from __future__ import annotations

import sys
from typing import Any

from disttrain.records.json_files import to_json
from jobs.status.run_state import PROGRESS_USAGE, RunState

_STATE_FIELDS = (
    "cause", "message", "retryable", "stale", "cluster", "job_id", "attempt", "attempts", "step", "steps",
    "samples_per_s", "live_samples_per_s", "loss", "eta_s", *PROGRESS_USAGE, "updated", "changed", "emulated",
    "waits_for", "start_expected", "config_key", "run_key", "code_hash",
)  # fmt: skip


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(to_json(value, indent=2) + "\n")


def state_as_json(state: RunState) -> dict[str, Any]:
    """Fields of one run in `status --json`."""
    return {
        "sweep": state.sweep,
        "run": state.name,
        "path": str(state.run.path),
        "state": state.displayed_state,
        **{name: getattr(state, name) for name in _STATE_FIELDS},
    }
