"""Live progress of an attempt, for display. Standard library only."""

from __future__ import annotations

import contextlib
import os
from datetime import datetime

from disttrain.records.json_files import read_json_or_none
from disttrain.records.reported import read_reported
from disttrain.records.run_directory import RunDir

_FIELDS = (
    "step", "steps", "samples_per_s", "live_samples_per_s", "loss", "eta_s", "updated", "emulated",
    "gpu_utilization", "gpu_memory_used_bytes", "gpu_power_w", "cpu_percent", "rss_bytes",
)  # fmt: skip


def read_progress(run: RunDir, attempt: int) -> dict[str, float | None]:
    """The progress of an attempt, for display only: values that cannot be read are left out."""
    progress = read_json_or_none(run.progress) or {}
    if progress.get("attempt") != attempt:
        return {}
    progress["live_samples_per_s"] = progress.get("samples_per_s")
    progress["samples_per_s"] = progress.get("mean_samples_per_s")
    return {name: value for name in _FIELDS if isinstance(value := progress.get(name), int | float)}


def reported_progress(run: RunDir, attempt: int) -> dict[str, float]:
    """The progress of a command without telemetry: its figures, and the time of its newest file."""
    reported = {name: value for name, value in read_reported(run).items() if name in _FIELDS}
    times = []
    for path in (run.metrics, run.attempt(attempt).rank_log(0)):
        with contextlib.suppress(OSError):
            times.append(os.stat(path).st_mtime)
    return {**reported, "updated": max(times)} if times else reported


def newest_time(*times: str | float | None) -> float | None:
    """The latest of these times (ISO 8601, or seconds since the epoch), in seconds since the epoch."""
    found = []
    for each in times:
        with contextlib.suppress(ValueError):  # for display only
            found.append(datetime.fromisoformat(each).timestamp() if isinstance(each, str) else each)
    return max((each for each in found if each is not None), default=None)
