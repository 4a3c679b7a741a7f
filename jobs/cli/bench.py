"""`bench comm`: submit a communication benchmark for each shape, and print the tables of finished ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jobs.cli import options

if TYPE_CHECKING:
    from disttrain.records.comm_bench import CommBench
    from disttrain.records.run_directory import RunDir

MODULE = "disttrain.comm_bench"
_SIZES = ("max_mb", "width", "layers", "rows")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    text = "measure collectives and forms of gradient communication, one job for each shape"
    comm = actions.add_parser("comm", help=text, description=text)
    options.common(
        comm,
        **options.SUBMISSION,
        page="the HTML page of the report, once a run has ended",
        report="`report.json`",
        comm_bench="`comm-bench.json` of each finished run",
    )
    options.value(comm, "--nodes", "N", "node counts (2)", nargs="+", default=["2"])
    options.value(comm, "--gpus-per-node", "N", "ranks on each node (1)", nargs="+")
    devices, text = ["auto", "cpu", "cuda", "shared"], "resources.device (auto)"
    comm.add_argument("--device", choices=devices, default="auto", help=text)
    text = "largest message in MiB (16)"
    options.value(comm, "--max-mb", "MIB", text, type=options.above_zero, default=16.0)
    for name, default, text in (
        ("--rounds", 15, "repeats of each measurement"),
        ("--width", 1024, "width of the model's layers"),
        ("--layers", 8, "layers of the model"),
        ("--rows", 16, "samples of a rank in a step"),
    ):
        options.value(comm, name, "N", f"{text} ({default})", type=options.positive, default=default)
    options.submission(comm)


def run(args: argparse.Namespace) -> int:
    from jobs.cli import report, submitting
    from jobs.cli.command_output import add_json
    from jobs.status.run_folders import runs_of
    from jobs.submission import plan

    exit_code = submitting.submit_plan(with_command(args), plan.sweep_plan)
    if args.dry_run or args.test_only or args.memory:
        return exit_code
    if results := _results(runs_of(args.runs, args.name)):
        report.write(args.runs, [args.name])
        add_json(comm_bench={name: result.model_dump(mode="json") for name, result in results.items()})
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


def results_text(runs: Iterable[RunDir]) -> str:
    """Tables of the finished communication benchmarks among these runs; empty without one."""
    from jobs.cli.formatting import table

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
    if not measured:
        return {}
    from disttrain.records.comm_bench import CommBench  # imports pydantic
    from disttrain.records.json_files import read_json

    return {run.name: CommBench.model_validate(read_json(run.comm_bench)) for run in measured}
