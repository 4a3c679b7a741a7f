"""`show`: one run in full: state, config, attempts, nodes, environment, results, files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobs.cli import options

if TYPE_CHECKING:
    from jobs.status.run_state import RunState

Record = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        record="`run.json`",
        attempt_records="`attempt.json` of each attempt",
        node_records="hardware of each node of the last attempt",
        env="variables added to the environment of the ranks",
        metrics="`metrics.json`, or null",
        hardware="figures of the samples that the agents took of a `command` in the last attempt",
    )
    options.value(parser, "run", "RUN")
    options.flag(parser, "--all", "print also the keys of the config that are at their defaults")


def run(args: argparse.Namespace) -> int:
    from disttrain.records.json_files import read_json_or_none
    from disttrain.records.node_hardware import read_hardware
    from disttrain.records.run_json import read_reported
    from jobs.cli import bench, selection
    from jobs.cli.command_output import add_json
    from jobs.status.refresh import with_canceller
    from jobs.status.run_folders import names_in

    run = selection.find_run(args.runs, args.run)
    names_in(run)
    state = with_canceller(selection.refresh_or_warn(selection.read_states([run]))[0])
    record = read_json_or_none(run.run_json) or {}
    metrics = read_json_or_none(run.metrics)
    env = (read_json_or_none(run.env_json) or {}).get("variables", {})
    attempts = [each for attempt in run.attempts() if (each := read_json_or_none(attempt.record))]
    paths = sorted(run.attempts()[-1].path.glob("node-*.json")) if run.attempts() else []
    records = [read_json_or_none(path) for path in paths if path.name.count(".") == 1]
    nodes = [each for each in records if each and "host" in each]
    hardware = read_hardware(run.attempts()[-1]) if run.attempts() else {}
    add_json(
        [state],
        record=record,
        attempt_records=attempts,
        node_records=nodes,
        env=env,
        metrics=metrics,
        hardware=hardware,
    )
    if args.json:
        return 0
    parts = [
        _pairs(state.label, _header(state, record)),
        _config(record, every=args.all),
        _section(
            "attempts",
            ("NUMBER", "STARTED (UTC)", "ENDED", "CAUSE", "MESSAGE"),
            [_attempt_cells(each) for each in attempts],
        ),
        _pairs("nodes of the last attempt", [(f"node {each['node']}", _node(each)) for each in nodes]),
        _section(
            "environment",
            ("VARIABLE", "REASON", "SOURCE"),
            [
                (f"{name}={each.get('value', '')}", str(each.get("reason", "")), str(each.get("source", "")))
                for name, each in env.items()
            ],
        ),
        _results(metrics or {}, read_reported(run)),
        _numbers("hardware in the last attempt, seen by the agents", hardware),
        bench.results_text([run]),
        _pairs("files", _files(state)),
    ]
    print("\n\n".join(filter(None, parts)))
    return 0


def _header(state: RunState, record: Record) -> list[tuple[str, Any]]:
    from jobs.cli.formatting import duration
    from jobs.cli.tables import state_note, step_of
    from jobs.core import run_code

    reason = state_note(state)
    provenance = record.get("provenance", {})
    code = run_code.command_record(record) or provenance.get("code", {})
    commit = (code.get("git_commit") or "no commit")[:12] + (" with changes" if code.get("git_dirty") else "")
    return [
        ("state", state.displayed_state + (f": {reason}" if reason else "")),
        ("step", step_of(state).replace("/", " of ")),
        ("ETA", duration(state.eta_s)),
        ("job", f"{state.job_id} on {state.cluster}" if state.job_id else ""),
        ("axes", ", ".join(f"{key}={value}" for key, value in record.get("axes", {}).items())),
        ("repeat", record.get("repeat")),
        ("code", f"{state.code_hash} ({commit})" if state.code_hash else commit if code else ""),
        ("tags", ", ".join(state.tags)),
        ("note", state.note),
        ("sweep's note", state.sweep_note),
        ("planned", provenance.get("created")),
    ]


def _config(record: Record, *, every: bool) -> str:
    """The config, without `every` only the keys that are not at their defaults."""
    import shlex

    from disttrain.config.dotted_keys import ABSENT, flat_values

    values = flat_values(record.get("config", {}))
    defaults = {} if every else _defaults(record)
    rows = [
        (key, "null" if value is None else shlex.join(value) if key == "command" else str(value))
        for key, value in values.items()
        if value != defaults.get(key, ABSENT)
    ]
    hidden = len(values) - len(rows)
    return _pairs(f"config, without {hidden} keys at their defaults (--all)" if hidden else "config", rows)


def _defaults(record: Record) -> dict[str, Any]:
    """Default of each key, also of the options of the run's kinds of model and data."""
    import json

    from disttrain.config.config_tree import Config
    from disttrain.config.dotted_keys import flat_values, get_key
    from disttrain.config.options import BUILT_SECTIONS, built_in

    plain = Config().as_dict()
    for section, package in BUILT_SECTIONS.items():
        builder = built_in(package).get(str(get_key(record, f"config.{section}.kind")))
        plain[section] |= builder.defaults if builder else {}
    return flat_values(json.loads(json.dumps(plain)))


def _attempt_cells(attempt: Record) -> tuple[str, ...]:
    times = (str(attempt.get(name) or "")[:19] for name in ("started", "ended"))
    message = " ".join(str(attempt.get("message") or "").split())
    return str(attempt.get("attempt", "")), *times, str(attempt.get("cause") or "running, or lost"), message


def _node(record: Record) -> str:
    from collections import Counter

    memory = record.get("memory_limit_bytes") or record.get("memory_bytes")
    gpus = Counter(gpu["name"] for gpu in record.get("gpus", []))
    rates = [
        (interface["name"], f"{speed / 1000:g} Gbit/s" if (speed := interface.get("speed_mbit")) else "")
        for interface in record.get("interfaces", [])
    ]
    rates += [(fabric["name"], fabric["rate"] or "") for fabric in record.get("fabrics", [])]
    parts = [
        f"{record['processors_usable']} processors" if record.get("processors_usable") else "",
        f"{memory / 2**30:.0f} GiB" if memory else "",
        *(f"{quantity} x {name}" for name, quantity in gpus.items()),
        f"driver {record['driver']}" if record.get("driver") else "",
        *(f"{name} {rate}".strip() for name, rate in rates),
    ]
    return f"{record['host']}: {', '.join(filter(None, parts))}"


def _numbers(title: str, values: Mapping[str, float]) -> str:
    from jobs.cli.formatting import number

    return _pairs(title, [(name, number(value, 6)) for name, value in values.items()])


def _results(metrics: Record, reported: Mapping[str, float]) -> str:
    from jobs.cli.formatting import number

    if reported:
        return _numbers("results that the script reports", reported)
    evaluation = (metrics.get("eval_history") or [{}])[-1]
    last = {"loss": evaluation.get("loss"), **(evaluation.get("metrics") or {})}
    rows = [
        ("samples/s", number(metrics.get("samples_per_s"), 6)),
        ("tokens/s", number(metrics.get("tokens_per_s"), 6)),
        ("peak memory, bytes", number(metrics.get("peak_memory_bytes"), 6)),
        ("measured steps", _measured_steps(metrics)),
        ("step time by phase", _phases(metrics.get("composition") or {})),
        *((f"validation {name.replace('_', ' ')}", number(value)) for name, value in last.items()),
    ]
    return _pairs("results", rows)


def _measured_steps(metrics: Record) -> str:
    """`34, without 3 of warm-up and 3 profiled; ...`: the steps that the results cover."""
    steps = metrics.get("measured_steps")
    if steps is None:
        return ""
    excluded = [f"{metrics.get('warmup_steps') or 0} of warm-up"]
    excluded += [f"{profiled} profiled"] if (profiled := metrics.get("sampled_steps")) else []
    longer = "the report leaves out a longer warm-up that it finds (MSER-5)"
    return f"{steps}, without {' and '.join(excluded)}; {longer}"


def _phases(seconds: Mapping[str, float | None]) -> str:
    """Shares of the phases of a step, the largest first: `input 96 %, compute 2 %`."""
    known = {name.removesuffix("_s").replace("_", " "): value for name, value in seconds.items() if value}
    total = sum(known.values())
    shares = sorted(((value / total, name) for name, value in known.items()), reverse=True)
    return ", ".join(f"{name} {share:.0%}".replace("%", " %") for share, name in shares if share >= 0.005)


def _files(state: RunState) -> list[tuple[str, Any]]:
    from jobs.status.refresh import batch_log_of

    run, batch = state.run, batch_log_of(state)
    return [
        ("run", run.path),
        ("logs", run.attempts()[-1].path if run.attempts() else ""),
        ("batch log", batch if batch is not None and batch.stat().st_size else ""),
        ("tensorboard", run.tensorboard if run.tensorboard.exists() else ""),
    ]


def _pairs(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """A section of aligned names and values; empty without a value."""
    shown = [(name, str(value)) for name, value in rows if value not in (None, "")]
    return _section(title, ("", ""), shown)


def _section(title: str, head: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    """A section with a table, below its head if there is one; empty without rows."""
    from jobs.cli.formatting import table

    return "\n  ".join([title, *table(head, rows).splitlines()[not any(head) :]]) if rows else ""
