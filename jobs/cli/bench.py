"""`bench comm`: submit a communication benchmark for each shape, and print the tables of finished ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from disttrain.records.comm_bench import CommBench
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli import report, submitting
from jobs.cli.command_output import add_json
from jobs.cli.formatting import table
from jobs.status.run_folders import runs_of
from jobs.submission import request

MODULE = "disttrain.comm_bench"
_SIZES = ("max_mb", "width", "layers", "rows")


def run(args: argparse.Namespace) -> int:
    exit_code = submitting.submit_plan(with_command(args), request.sweep_plan)
    if not (args.dry_run or args.test_only or args.memory):
        print_results(args.runs, args.name, as_json=args.json)
    return exit_code


def with_command(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a `sweep` whose runs are the command of the benchmark."""
    words = ["-m", MODULE, "--device", args.device, "--repeats", str(args.rounds)]
    for name in _SIZES:
        words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    args.command, args.file, args.name = words, None, args.name or "comm-bench"
    args.set = [f"resources.device={args.device}"]
    args.repeats, args.scaling, args.grid = None, None, []
    args.no_report = True  # the report is about training
    return args


def print_results(root: Path, sweep: str, as_json: bool = False) -> None:
    """Print the tables of the sweep's finished runs, and write its report."""
    results = _results(runs_of(root, sweep))
    if not results:
        return
    report.write(root, [sweep], as_json=as_json)
    if as_json:
        add_json(comm_bench={name: result.model_dump(mode="json") for name, result in results.items()})


def results_text(runs: Iterable[RunDir]) -> str:
    """Tables of the finished communication benchmarks among these runs; empty without one."""
    results = _results(runs)
    if not results:
        return ""
    # imports matplotlib, which takes seconds
    from analysis.report.sections import comm_bench

    return "\n\n".join(
        f"{caption}\n{table(head, rows, right=frozenset(head[1:]))}"
        for caption, head, rows in comm_bench.printed(results)
    )


def _results(runs: Iterable[RunDir]) -> dict[str, CommBench]:
    measured = [run for run in runs if run.comm_bench.exists()]
    return {run.name: CommBench.model_validate(read_json(run.comm_bench)) for run in measured}
