"""`status`: the state of each run, from its files and from the scheduler of its job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jobs import PROGRAM
from jobs.cli import options

if TYPE_CHECKING:
    from jobs.status.run_state import RunState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        usage="`--long`: GPU-hours and queue time of each run that has started",
        usage_by_sweep="`--long`: their sums",
        table="`--csv FILE`, `--parquet FILE`: the file written",
    )
    options.value(parser, "sweeps", "SWEEP", "sweeps to print (all)", nargs="*")
    options.run_filter(parser)
    form = parser.add_mutually_exclusive_group()
    options.flag(form, "--long", "print GPU-hours and queue time of all attempts")
    text = "write the runs as CSV, with their config (standard output); after the names of sweeps"
    options.value(form, "--csv", "FILE", text, nargs="?", const="-")
    options.value(form, "--parquet", "FILE", "write the same table as Parquet")


def run(args: argparse.Namespace) -> int:
    import sys

    from jobs.cli import selection
    from jobs.cli.command_output import add_json, print_warning
    from jobs.cli.tables import THROUGHPUT_BASIS, state_counts, status_table, sweep_table
    from jobs.cli.terminal import has_colour
    from jobs.status.run_folders import runs_below, runs_of

    is_selected = selection.by_state(args)
    sweeps = dict.fromkeys(selection.find_sweep(args.runs, name) for name in args.sweeps)
    runs = [run for sweep in sweeps for run in runs_of(args.runs, sweep)]
    every = selection.read_states(runs if sweeps else runs_below(args.runs, print_warning))
    selection.with_tags(every, args.tags)  # an unknown tag is refused before the scheduler is queried
    every = selection.refresh_or_warn(every)
    states = [state for state in selection.with_tags(every, args.tags) if is_selected(state)]
    if args.csv is not None or args.parquet is not None:
        return _write_table(args, states)
    if args.long and states:
        return _print_gpu_hours(states)
    add_json(states)
    if not every:
        print(f"no runs in {args.runs} yet: {PROGRAM} sweep --nodes 1 2 4")
    elif not states:
        print(f"none of {state_counts(every)}")
    else:
        shown = {state.sweep for state in states}
        parts = [sweep_table([state for state in every if state.sweep in shown])]
        parts.append(status_table(states, coloured=has_colour(sys.stdout)))
        if any(state.samples_per_s is not None for state in states):
            parts.append(THROUGHPUT_BASIS)
        print(*parts, state_counts(states), sep="\n\n")
    return 0


def _write_table(args: argparse.Namespace, states: list[RunState]) -> int:
    from disttrain.errors import ConfigError
    from jobs.cli.command_output import add_json
    from jobs.cli.selection import sweep_names
    from jobs.cli.tables import state_counts, write_table

    flag, file = ("--csv", args.csv) if args.csv is not None else ("--parquet", args.parquet)
    if file in sweep_names(args.runs):  # `status --csv SWEEP`
        raise ConfigError(f"{file!r} is a sweep; sweeps come first: status {file} {flag}", at=flag)
    if file == "-" and (args.json or flag == "--parquet"):
        raise ConfigError("needs a FILE here: standard output is for text alone", at=flag)
    write_table(states, file, flag)
    if file != "-":
        add_json(states, table=file)
        print(f"{state_counts(states)}: {file}")
    return 0


def _print_gpu_hours(states: list[RunState]) -> int:
    from disttrain.records import gpu_hours
    from disttrain.records.json_files import read_json_or_none
    from jobs.cli.command_output import add_json
    from jobs.cli.formatting import count, duration, number, table
    from jobs.cli.tables import state_counts
    from jobs.status.gpu_hours import usage_of_runs

    usage = usage_of_runs(state.run for state in states)
    names = dict.fromkeys(state.sweep for state in states)
    runs, sweeps, rows, lines = [], [], [], []
    for state in states:
        cells = ["", "", "", ""]
        if used := usage.get(state.run.path):
            bound = gpu_hours.bound_hours(read_json_or_none(state.run.run_json) or {}, used.unit)
            record = used.model_dump(mode="json", exclude={"schema_version"})
            record |= {"sweep": state.sweep, "run": state.name, "attempts": state.attempts}
            runs.append(record | {"bound_hours_per_start": bound})
            limit = "" if bound is None else f"{number(bound, 3)} a start"
            cells = [f"{number(used.hours, 3)} {used.unit}", limit, duration(used.queue_wait_s), used.source]
        name = state.label if len(names) > 1 else state.name
        rows.append([name, state.displayed_state, str(state.attempts), *cells])
    for sweep in names:
        members = [state for state in states if state.sweep == sweep]
        used_here = [usage[state.run.path] for state in members if state.run.path in usage]
        attempts, hours = sum(state.attempts for state in members), dict[str, float]()
        for used in used_here:
            hours[used.unit] = hours.get(used.unit, 0.0) + used.hours
        waits = [used.queue_wait_s for used in used_here if used.queue_wait_s is not None]
        wait = sum(waits) if waits else None
        sweeps.append({"sweep": sweep, "attempts": attempts, "hours": hours, "queue_wait_s": wait})
        parts = [" and ".join(f"{number(each, 3)} {unit}" for unit, each in hours.items()) or "nothing used"]
        parts += [count(attempts, "attempt")] + [f"{duration(wait)} in the queue"] * (wait is not None)
        lines.append(f"{sweep}: {', '.join(parts)}")
    add_json(states, usage=runs, usage_by_sweep=sweeps)
    columns = ("RUN", "STATE", "ATTEMPTS", "USED", "LIMIT", "QUEUE WAIT", "BY")
    print(table(columns, rows, frozenset(columns[2:6])), "", *lines, "", state_counts(states), sep="\n")
    return 0
