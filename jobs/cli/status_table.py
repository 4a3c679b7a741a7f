"""Table of run states: `status`, `watch`, `show`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from jobs.cli.formatting import count, duration, number, size, table
from jobs.cli.terminal import Colour, paint
from jobs.status.run_state import RunState

COLUMNS = (
    "RUN",
    "STATE",
    "STEP",
    "SAMPLES/S",
    "LOSS",
    "ETA",
    "UTIL",
    "MEMORY",
    "POWER",
    "SEEN",
    "TAGS",
    "NOTE",
)
RIGHT_ALIGNED = frozenset({*COLUMNS[2:10], "DONE"})
STATES: dict[str, Colour | None] = {
    "running": "cyan",
    "starting": "cyan",
    "submitting": None,
    "failed": "red",
    "lost": "red",
    "corrupt": "red",
    "stopped": "yellow",
    "cancelled": "yellow",
    "queued": None,
    "planned": None,
    "done": "green",
}
"""Displayed states with their colours, in the order in which they are counted and kept in a low window."""
THROUGHPUT_BASIS = (
    "SAMPLES/S: the measured steps after telemetry.warmup_steps. The report also leaves out a longer warm-up "
    "that it finds (MSER-5)."
)
_MAX_NOTE_CHARS = 100


def step_of(state: RunState) -> str:
    """`20/300`, `20` of an unknown number, or nothing."""
    if state.step is None:
        return ""
    return f"{state.step}" if state.steps is None else f"{state.step}/{state.steps}"


def table_row(state: RunState, now: float, *, with_sweep: bool) -> tuple[str, ...]:
    """Cells of `COLUMNS` for one run. `now`: Unix time in seconds."""
    return (
        state.label if with_sweep else state.name,
        state.displayed_state,
        step_of(state),
        throughput(state),
        number(state.loss),
        duration(state.eta_s),
        *resource_cells(state),
        _ago(state.updated if state.active else None, now),
        " ".join(state.own_tags),
        "; ".join(filter(None, [state_note(state), quoted(state.note)])),
    )


def _ago(then: float | None, now: float) -> str:
    return f"{duration(now - then)} ago" if then else ""


def quoted(note: str | None) -> str:
    """A user's note, which differs by its quotation marks from what the program found."""
    return f'"{note}"' if note else ""


def throughput(state: RunState) -> str:
    """The mean over the measured steps, or the live rate of a run that has not measured any yet."""
    if state.samples_per_s is None and state.live_samples_per_s is not None:
        return f"{number(state.live_samples_per_s)} now"
    return number(state.samples_per_s)


def resource_cells(state: RunState) -> tuple[str, str, str]:
    """Utilization, memory and power of a running run: of its GPUs, or else of a CPU rank."""
    if state.state != "running":
        return "", "", ""
    if state.gpu_utilization is None and state.gpu_memory_used_bytes is None:
        return "" if state.cpu_percent is None else f"cpu {state.cpu_percent:.0f}%", size(state.rss_bytes), ""
    utilization = "" if state.gpu_utilization is None else f"gpu {state.gpu_utilization:.0%}"
    power = "" if state.gpu_power_w is None else f"{state.gpu_power_w:.0f} W"
    return utilization, size(state.gpu_memory_used_bytes), power


def state_note(state: RunState) -> str:
    """Number of attempts, cause and message of a run, on one line."""
    marks = ["emulated"] if state.emulated else []
    if state.state == "done":
        return ", ".join([*marks, *filter(None, [state.message]), *["made by older code"] * state.stale])
    if state.attempts > 1:
        marks.append(count(state.attempts, "attempt"))
    parts = [state.cause] if state.cause and state.cause != state.displayed_state else []
    if state.message:
        parts.append(" ".join(state.message.split()))
    text = "; ".join(filter(None, [*marks, *queue_reason(state), ": ".join(parts)]))
    return text if len(text) <= _MAX_NOTE_CHARS else text[: _MAX_NOTE_CHARS - 1] + "…"


def queue_reason(state: RunState) -> list[str]:
    """Reason and expected start of a queued job, as the scheduler reports them; empty otherwise."""
    if state.state != "queued" or not state.waits_for:
        return []
    left_s = state.start_expected - time.time() if state.start_expected else 0.0
    when = f", expected to start in {duration(left_s)}" if left_s > 0 else ""
    return [f"waits for {state.waits_for}{when}"]


def table_rows(states: Sequence[RunState]) -> list[tuple[str, ...]]:
    """Cells of all runs. Names include the sweep when there are several sweeps."""
    now, several = time.time(), len({state.sweep for state in states}) > 1
    return [table_row(state, now, with_sweep=several) for state in states]


def status_table(states: Sequence[RunState], *, coloured: bool = False) -> str:
    """All runs as an aligned text table, whose rows have the colours of their states if `coloured`."""
    head, *rows = table(COLUMNS, table_rows(states), RIGHT_ALIGNED).splitlines()
    if coloured:
        rows = [paint(row, STATES[state.displayed_state]) for row, state in zip(rows, states, strict=True)]
    return "\n".join([head, *rows])


def state_counts(states: Sequence[RunState]) -> str:
    """`3 runs: 1 running, 2 done (1 made by older code)`."""
    return f"{count(len(states), 'run')}: {_counts_by_state(states)}"


def _counts_by_state(states: Sequence[RunState]) -> str:
    counts = Counter(state.displayed_state for state in states)
    stale = sum(state.stale for state in states)
    parts = ", ".join(f"{counts[name]} {name}" for name in STATES if counts[name])
    return f"{parts} ({stale} made by older code)" if stale else parts


def sweep_table(states: Sequence[RunState]) -> str:
    """One line for each sweep: done of all runs, counts by state, newest activity."""
    sweeps: dict[str, list[RunState]] = {}
    for state in states:
        sweeps.setdefault(state.sweep, []).append(state)
    rows = [
        (
            sweep,
            f"{sum(state.state == 'done' for state in runs)}/{len(runs)}",
            _counts_by_state(runs),
            _ago(max(state.changed or 0.0 for state in runs), time.time()),
            " ".join(runs[0].sweep_tags),
            quoted(runs[0].sweep_note),
        )
        for sweep, runs in sweeps.items()
    ]
    return table(("SWEEP", "DONE", "STATES", "CHANGED", "TAGS", "NOTE"), rows, RIGHT_ALIGNED)
