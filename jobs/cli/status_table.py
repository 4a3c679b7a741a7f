"""Run states as text, table rows and JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from disttrain.records.json_files import to_json
from jobs.cli.formatting import duration, number, size, table
from jobs.cli.run_lookup import label
from jobs.status.run_state import PROGRESS_USAGE, RunState

USAGE_HEAD = ("BUSY", "MEMORY", "POWER")
HEAD = ("RUN", "STATE", "STEP", "SAMPLES/S", "LOSS", "ETA", *USAGE_HEAD, "SEEN", "NOTE")
RIGHT = frozenset({"STEP", "SAMPLES/S", "LOSS", "ETA", *USAGE_HEAD, "SEEN"})
_NOTE_WIDTH = 100
_ORDER = (
    "running",
    "queued",
    "submitting",
    "planned",
    "failed",
    "stopped",
    "cancelled",
    "lost",
    "corrupt",
    "done",
)
_JSON_FIELDS = (
    "cause", "message", "retryable", "stale", "cluster", "job_id", "attempt", "attempts", "step", "steps",
    "samples_per_s", "loss", "eta_s", *PROGRESS_USAGE, "updated", "emulated", "waits_for", "start_expected",
    "config_key", "run_key", "code_hash",
)  # fmt: skip


def word_of(state: RunState) -> str:
    """The state in one word; a run that the user ended is no failure to a reader."""
    if state.state == "failed" and state.cause in ("cancelled", "stopped"):
        return state.cause
    return state.state


def row(state: RunState, now: float, *, with_sweep: bool) -> tuple[str, ...]:
    """The cells of `HEAD` for one run."""
    seen = duration(now - state.updated) if state.updated and state.active else ""
    return (
        label(state.run) if with_sweep else state.name,
        word_of(state),
        "" if state.step is None else f"{state.step}/{state.steps}",
        number(state.samples_per_s),
        number(state.loss),
        duration(state.eta_s),
        *usage(state),
        f"{seen} ago" if seen else "",
        note(state),
    )


def usage(state: RunState) -> tuple[str, str, str]:
    """How busy what it runs on is, memory and power, of a run at work: of its GPUs, or of a CPU rank."""
    if state.state != "running":
        return "", "", ""
    if state.gpu_utilization is not None or state.gpu_memory_used_bytes is not None:
        busy = "" if state.gpu_utilization is None else f"gpu {state.gpu_utilization:.0%}"
        power = "" if state.gpu_power_w is None else f"{state.gpu_power_w:.0f} W"
        return busy, size(state.gpu_memory_used_bytes), power
    busy = "" if state.cpu_percent is None else f"cpu {state.cpu_percent:.0f}%"
    return busy, size(state.rss_bytes), ""


def note(state: RunState) -> str:
    """Why a run is what it is, on one line."""
    marks = ["emulated"] if state.emulated else []
    if state.state == "done":
        return ", ".join([*marks, "made by older code"] if state.stale else marks)
    parts = [state.cause] if state.cause and state.cause != word_of(state) else []
    if state.message:
        parts.append(" ".join(state.message.split()))
    if state.active and state.attempts > 1:
        parts.append(f"attempt {state.attempts}")
    text = "; ".join(filter(None, [*marks, *waiting(state), ": ".join(parts)]))
    return text if len(text) <= _NOTE_WIDTH else text[: _NOTE_WIDTH - 1] + "…"


def waiting(state: RunState) -> list[str]:
    """What its job waits for, and until when, where the cluster says so."""
    if state.state != "queued" or not state.waits_for:
        return []
    left_s = state.start_expected - time.time() if state.start_expected else 0.0
    when = f", expected to start in {duration(left_s)}" if left_s > 0 else ""
    return [f"waits for {state.waits_for}{when}"]


def rows(states: Sequence[RunState]) -> list[tuple[str, ...]]:
    """The cells of every run; runs of several sweeps are named with theirs."""
    now, several = time.time(), len({state.sweep for state in states}) > 1
    return [row(state, now, with_sweep=several) for state in states]


def status_table(states: Sequence[RunState]) -> str:
    """All runs as aligned plain text."""
    return table(HEAD, rows(states), RIGHT)


def tally(states: Iterable[RunState]) -> str:
    """`3 runs: 1 running, 2 done (1 stale)`."""
    known = list(states)
    counts = Counter(word_of(state) for state in known)
    stale = sum(state.stale for state in known)
    parts = [f"{counts[word]} {word}" for word in _ORDER if counts[word]]
    total = f"{len(known)} run{'' if len(known) == 1 else 's'}"
    return f"{total}: {', '.join(parts)}" + (f" ({stale} made by older code)" if stale else "")


def as_json(state: RunState) -> dict[str, Any]:
    """One run as `--json` shows it."""
    fields = {name: getattr(state, name) for name in _JSON_FIELDS}
    return {
        "sweep": state.sweep,
        "run": state.name,
        "path": str(state.run.path),
        "state": word_of(state),
        **fields,
    }


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(to_json(value, indent=2) + "\n")
