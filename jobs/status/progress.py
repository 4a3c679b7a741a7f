"""Live progress of an attempt, for display. Standard library only."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

_FIELDS = (
    "step", "steps", "samples_per_s", "live_samples_per_s", "loss", "eta_s", "updated", "emulated",
    "gpu_utilization", "gpu_memory_used_bytes", "gpu_power_w", "cpu_percent", "rss_bytes",
)  # fmt: skip
ENDED_PROGRESS: dict[str, Any] = {"eta_s": None, "live_samples_per_s": None}
"""Fields that have no value after the end of an attempt."""


def read_progress(run: RunDir, attempt: int) -> dict[str, float | None]:
    """The progress of an attempt, for display only: values that cannot be read are left out."""
    progress = read_json_or_none(run.progress) or {}
    if progress.get("attempt") != attempt:
        return {}
    live = progress.get("samples_per_s")
    # Older code wrote only this rate: a live one, and at the end the throughput.
    read = {**progress, "samples_per_s": progress.get("mean_samples_per_s", live), "live_samples_per_s": live}
    return {name: value for name in _FIELDS if isinstance(value := read.get(name), int | float)}


def newest_time(*times: str | float | None) -> float | None:
    """The latest of these times (ISO 8601, or seconds since the epoch), in seconds since the epoch."""
    found = []
    for each in times:
        with contextlib.suppress(ValueError):  # for display only
            found.append(datetime.fromisoformat(each).timestamp() if isinstance(each, str) else each)
    return max((each for each in found if each is not None), default=None)
