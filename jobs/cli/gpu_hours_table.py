"""`status --long`: GPU-hours and queue time of each run and sweep, with the bound of one start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disttrain.records import gpu_hours
from disttrain.records.gpu_hours import RunGpuHours
from disttrain.records.run_json import read_run_json_or_none
from jobs.cli.formatting import count, duration, number, table
from jobs.cli.run_lookup import run_label
from jobs.status.gpu_hours import usage_of_runs
from jobs.status.run_state import RunState

_GPU_HOURS_COLUMNS = ("RUN", "STATE", "ATTEMPTS", "USED", "LIMIT", "QUEUE WAIT", "BY")
_RIGHT_ALIGNED = frozenset({"ATTEMPTS", "USED", "LIMIT", "QUEUE WAIT"})


def gpu_hours_json(states: Sequence[RunState]) -> tuple[list[dict[str, Any] | None], list[dict[str, Any]]]:
    """Usage of each run (None if it never started), and the totals by sweep, as `--json` prints them."""
    found = usage_of_runs(state.run for state in states)
    runs = [_run_usage(state, found.get(state.run.path)) for state in states]
    sweeps = []
    for sweep in dict.fromkeys(state.sweep for state in states):
        own = [found[s.run.path] for s in states if s.sweep == sweep and s.run.path in found]
        waits = [each.queue_wait_s for each in own if each.queue_wait_s is not None]
        sweeps.append(
            {
                "sweep": sweep,
                "attempts": sum(state.attempts for state in states if state.sweep == sweep),
                "hours": gpu_hours.total(own),
                "queue_wait_s": sum(waits) if waits else None,
            }
        )
    return runs, sweeps


def _run_usage(state: RunState, found: RunGpuHours | None) -> dict[str, Any] | None:
    if found is None:
        return None
    record = read_run_json_or_none(state.run) or {}
    try:
        bound = gpu_hours.bound_hours(record, found.unit)
    except (KeyError, TypeError, ValueError):
        bound = None
    usage = found.model_dump(mode="json", exclude={"schema_version"})
    return usage | {"attempts": state.attempts, "bound_hours_per_start": bound}


def gpu_hours_table(states: Sequence[RunState]) -> str:
    """A table of the runs, and one line per sweep."""
    runs, sweeps = gpu_hours_json(states)
    with_sweep = len(sweeps) > 1
    rows = [
        (
            run_label(state.run) if with_sweep else state.name,
            state.displayed_state,
            str(state.attempts),
            *_usage_cells(each),
        )
        for state, each in zip(states, runs, strict=True)
    ]
    lines = [_sweep_total(each) for each in sweeps]
    return "\n".join([table(_GPU_HOURS_COLUMNS, rows, _RIGHT_ALIGNED), "", *lines])


def _usage_cells(each: dict[str, Any] | None) -> tuple[str, ...]:
    if each is None:
        return ("", "", "", "")
    bound = each["bound_hours_per_start"]
    return (
        f"{number(each['hours'], 3)} {each['unit']}",
        "" if bound is None else f"{number(bound, 3)} a start",
        duration(each["queue_wait_s"]),
        each["source"],
    )


def _sweep_total(each: dict[str, Any]) -> str:
    hours = " and ".join(f"{number(value, 3)} {unit}" for unit, value in each["hours"].items())
    parts = [hours or "nothing used", count(each["attempts"], "attempt")]
    if each["queue_wait_s"] is not None:
        parts.append(f"{duration(each['queue_wait_s'])} in the queue")
    return f"{each['sweep']}: {', '.join(parts)}"
