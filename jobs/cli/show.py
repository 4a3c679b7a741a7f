"""`show`: one run in full: state, config, attempts, nodes, environment, results, files."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from disttrain.config.dotted_keys import flat_values
from disttrain.records.json_files import read_json_or_none
from disttrain.records.reported import read_reported
from disttrain.records.run_directory import RunDir
from disttrain.records.run_json import read_run_json_or_none
from jobs.cli import bench, run_lookup, submitting
from jobs.cli.command_output import add_json
from jobs.cli.formatting import duration, number, table
from jobs.cli.polling import refresh_or_warn
from jobs.cli.status_table import state_note, step_of
from jobs.core import command_code
from jobs.status.batch_log import batch_log_of
from jobs.status.refresh import with_canceller
from jobs.status.run_folders import refuse_links
from jobs.status.run_state import RunState

_RESULTS = (
    ("samples_per_s", "samples/s"),
    ("tokens_per_s", "tokens/s"),
    ("peak_memory_bytes", "peak memory, bytes"),
)


def run(args: argparse.Namespace) -> int:
    found = run_lookup.find_run(args.runs, args.run)
    refuse_links(found)
    state = with_canceller(refresh_or_warn(submitting.read_states([found]))[0])
    record = read_run_json_or_none(found) or {}
    metrics = read_json_or_none(found.metrics)
    env = (read_json_or_none(found.env_json) or {}).get("variables", {})
    attempts = [each for attempt in found.attempts() if (each := read_json_or_none(attempt.record))]
    nodes = _node_records(found)
    if args.json:
        add_json(
            [state],
            record=record,
            attempt_records=attempts,
            node_records=nodes,
            env=env,
            metrics=metrics,
        )
        return 0
    parts = [
        _header(state, record),
        _config(record),
        _attempt_table(attempts),
        _node_lines(nodes),
        _environment_table(env),
        _results(metrics or {}, read_reported(found)),
        bench.results_text([found]),
        _files(state),
    ]
    print("\n\n".join(part for part in parts if part))
    return 0


def _header(state: RunState, record: dict[str, Any]) -> str:
    reason = state_note(state)
    code = command_code.of_run(record) or record.get("provenance", {}).get("code", {})
    commit = (code.get("git_commit") or "no commit")[:12] + (" with changes" if code.get("git_dirty") else "")
    rows = [
        ("state", state.displayed_state + (f": {reason}" if reason else "")),
        ("step", step_of(state).replace("/", " of ")),
        ("ETA", duration(state.eta_s)),
        ("job", f"{state.job_id} on {state.cluster}" if state.job_id else ""),
        ("axes", ", ".join(f"{key}={value}" for key, value in record.get("axes", {}).items())),
        ("repeat", "" if record.get("repeat") is None else str(record["repeat"])),
        ("code", f"{state.code_hash} ({commit})" if state.code_hash else commit if code else ""),
        ("tags", ", ".join(state.tags)),
        ("note", state.note or ""),
        ("sweep's note", state.sweep_note or ""),
        ("planned", record.get("provenance", {}).get("created", "")),
    ]
    return f"{run_lookup.run_label(state.run)}\n" + _aligned_pairs(rows)


def _config(record: dict[str, Any]) -> str:
    rows = [
        (key, "null" if value is None else shlex.join(value) if key == "command" else str(value))
        for key, value in flat_values(record.get("config", {})).items()
    ]
    return f"config\n{_aligned_pairs(rows)}" if rows else ""


def _attempt_table(records: list[dict[str, Any]]) -> str:
    rows = [
        (
            str(each.get("attempt", "")),
            str(each.get("started") or "")[:19],
            str(each.get("ended") or "")[:19],
            str(each.get("cause") or "running, or lost"),
            " ".join(str(each.get("message") or "").split()),
        )
        for each in records
    ]
    return (
        "attempts\n" + _indented(table(("NUMBER", "STARTED (UTC)", "ENDED", "CAUSE", "MESSAGE"), rows))
        if rows
        else ""
    )


def _node_records(run: RunDir) -> list[dict[str, Any]]:
    """Hardware records of the nodes of the last attempt."""
    attempts = run.attempts()
    paths = sorted(attempts[-1].path.glob("node-*.json")) if attempts else []
    read = [read_json_or_none(path) for path in paths if path.name.count(".") == 1]
    return [each for each in read if each and "host" in each]


def _node_lines(records: list[dict[str, Any]]) -> str:
    rows = []
    for each in records:
        memory = each.get("memory_limit_bytes") or each.get("memory_bytes")
        gpus = [gpu["name"] for gpu in each.get("gpus", [])]
        parts = [
            f"{each.get('processors_usable')} processors" if each.get("processors_usable") else "",
            f"{memory / 2**30:.0f} GiB" if memory else "",
            *(f"{number_of} x {name}" for name, number_of in Counter(gpus).items()),
            f"driver {each['driver']}" if each.get("driver") else "",
            *(_interface_text(interface) for interface in each.get("interfaces", [])),
            *(f"{fabric['name']} {fabric['rate'] or ''}".strip() for fabric in each.get("fabrics", [])),
        ]
        rows.append((f"node {each['node']}", f"{each['host']}: {', '.join(filter(None, parts))}"))
    return f"nodes of the last attempt\n{_aligned_pairs(rows)}" if rows else ""


def _interface_text(interface: dict[str, Any]) -> str:
    speed = interface.get("speed_mbit")
    return f"{interface['name']} {speed / 1000:g} Gbit/s" if speed else str(interface["name"])


def _environment_table(variables: dict[str, Any]) -> str:
    rows = [
        (f"{name}={each.get('value', '')}", str(each.get("reason", "")), str(each.get("source", "")))
        for name, each in variables.items()
    ]
    return "environment\n" + _indented(table(("VARIABLE", "REASON", "SOURCE"), rows)) if rows else ""


def _results(metrics: dict[str, Any], reported: Mapping[str, float]) -> str:
    if reported:
        rows = [(name, number(value, 6)) for name, value in reported.items()]
        return f"results that the script reports\n{_aligned_pairs(rows)}"
    rows = [(title, number(metrics[name], 6)) for name, title in _RESULTS if metrics.get(name) is not None]
    rows.append(("measured steps", _measured_steps(metrics)))
    rows.append(("step time by phase", _phases(metrics.get("composition") or {})))
    evals = metrics.get("eval_history") or []
    if evals:
        last = {"loss": evals[-1].get("loss"), **(evals[-1].get("metrics") or {})}
        rows += [(f"validation {name.replace('_', ' ')}", number(value)) for name, value in last.items()]
    return f"results\n{_aligned_pairs(rows)}" if any(value for _, value in rows) else ""


def _measured_steps(metrics: Mapping[str, Any]) -> str:
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


def _files(state: RunState) -> str:
    run = state.run
    attempts, batch = run.attempts(), batch_log_of(state)
    rows = [("run", str(run.path)), ("logs", str(attempts[-1].path) if attempts else "")]
    rows.append(("batch log", str(batch) if batch is not None and batch.stat().st_size else ""))
    rows.append(("tensorboard", str(run.tensorboard) if run.tensorboard.exists() else ""))
    return f"files\n{_aligned_pairs(rows)}"


def _aligned_pairs(rows: list[tuple[str, str]]) -> str:
    given = [row for row in rows if row[1]]
    width = max((len(name) for name, _ in given), default=0)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in given)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
