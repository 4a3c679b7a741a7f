"""Tables of runs: for people by `status` and `watch`, and for other programs by `--csv` and `--parquet`.

docs/sweeps.md describes both. Columns for other programs are `EXPORTED`, then the keys of the config.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from disttrain.config.dotted_keys import flat_values
from disttrain.errors import ConfigError
from disttrain.records.json_files import CorruptFile, read_json_or_none, write_bytes
from disttrain.records.run_json import ranks_per_node
from jobs.cli.formatting import count, duration, number, size, table
from jobs.cli.terminal import Colour, paint
from jobs.core import journal
from jobs.status.run_state import RunFields, RunState

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
_HINTS = get_type_hints(RunFields)
EXPORTED: dict[str, type] = {
    **dict.fromkeys(("sweep", "run", "path", "state", "tags", "submitted", "started", "ended"), str),
    **dict.fromkeys(("nodes", "ranks_per_node", "ranks", "repeat"), int),
    **{"hours": float, "hours_unit": str, "queue_wait_s": float},
    **{field.name: (get_args(_HINTS[field.name]) or [_HINTS[field.name]])[0] for field in fields(RunFields)},
}
"""Fixed columns of `--csv` and `--parquet`, with the types of their values."""


def step_of(state: RunState) -> str:
    """`20/300`, `20` of an unknown number, or nothing."""
    if state.step is None:
        return ""
    return f"{state.step}" if state.steps is None else f"{state.step}/{state.steps}"


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


def status_table(states: Sequence[RunState], *, coloured: bool = False) -> str:
    """All runs as an aligned text table, whose rows have the colours of their states if `coloured`.

    Names include the sweep when there are several sweeps.
    """
    now, several = time.time(), len({state.sweep for state in states}) > 1
    cells = [
        (
            state.label if several else state.name,
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
        for state in states
    ]
    head, *rows = table(COLUMNS, cells, RIGHT_ALIGNED).splitlines()
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


def write_table(states: Sequence[RunState], file: str, flag: str) -> None:
    """Write CSV (RFC 4180, UTF-8; to stdout for `-`), or Parquet with the flag `--parquet`.

    The types of Parquet columns do not depend on which values are null. Raises `ConfigError`.
    """
    columns, rows = exported_rows(states)
    content = io.BytesIO()
    if flag == "--parquet":
        import pyarrow
        from pyarrow import parquet

        types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
        schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), content)
    else:
        text = io.TextIOWrapper(content, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            values = [row.get(name) for name in columns]
            writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in values])
        text.detach()
    if file == "-":
        sys.stdout.write(content.getvalue().decode())
        return
    try:
        write_bytes(Path(file), content.getvalue())
    except OSError as error:
        raise ConfigError(f"cannot write {file!r}: {error.strerror}", at=flag) from None


def exported_rows(states: Sequence[RunState]) -> tuple[dict[str, type], list[dict[str, Any]]]:
    """Types of all columns, in order, and the rows in the order of `states`. Unknown values are None."""
    from jobs.status.gpu_hours import usage_of_runs  # imports pydantic

    usage = usage_of_runs(state.run for state in states)
    configs, rows = [], []
    for state in states:
        record = read_json_or_none(state.run.run_json) or {}
        config = flat_values(record.get("config", {}))
        axes = {key: value for key, value in record.get("axes", {}).items() if key not in config}
        # an axis of a script of one's own may have the name of a fixed column
        configs.append(config | {f"axes.{key}" if key in EXPORTED else key: axes[key] for key in axes})
        row = state.as_json() | _times(state) | {"tags": " ".join(state.tags) or None}
        nodes = config.get("resources.nodes")
        ranks = ranks_per_node(record["config"]) if config.get("resources.gpus_per_node") else None
        row |= {"nodes": nodes, "ranks_per_node": ranks, "ranks": nodes * ranks if nodes and ranks else None}
        row["repeat"] = record.get("repeat")
        if used := usage.get(state.run.path):
            row |= {"hours": used.hours, "hours_unit": used.unit, "queue_wait_s": used.queue_wait_s}
        rows.append(row)
    keys = dict.fromkeys(key for config in configs for key in config)
    columns = EXPORTED | {key: _common_type([config.get(key) for config in configs]) for key in keys}
    return columns, [
        {name: _converted(value, columns[name]) for name, value in (config | row).items()}
        for row, config in zip(rows, configs, strict=True)
    ]


def _times(state: RunState) -> dict[str, str | None]:
    """First submission, first start and last end: UTC, ISO 8601."""
    from disttrain.records.gpu_hours import attempt_records, iso

    submissions, attempts = journal.entries(state.run), attempt_records(state.run)
    times = {"started": attempts[0].get("started") if attempts else None}
    with contextlib.suppress(CorruptFile):
        times["submitted"] = (submissions[0].read("intent") or {}).get("time") if submissions else None
    if attempts and not state.active:
        times["ended"] = attempts[-1].get("ended") or (iso(state.changed) if state.changed else None)
    return times


def _common_type(values: Sequence[Any]) -> type:
    """The type of a config key's values: numbers and booleans keep theirs, all else is text."""
    found = {type(value) for value in values if value is not None}
    if found == {int, float}:
        return float
    return next(iter(found)) if len(found) == 1 and found <= {int, float, bool} else str


def _converted(value: Any, kind: type) -> Any:
    if value is None or isinstance(value, kind):
        return value
    if kind is str:
        return json.dumps(value, sort_keys=True)
    return kind(value)
