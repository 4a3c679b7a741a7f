"""`report`: write the efficiency report of one sweep, or of several together."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import PROGRAM
from jobs.cli import options

if TYPE_CHECKING:
    from analysis.report import Written
    from disttrain.records.gpu_hours import RunGpuHours
    from disttrain.records.run_directory import RunDir
    from jobs.status.run_state import RunState

EXTRA = ("jinja2", "matplotlib", "msgspec", "pandas", "pyarrow", "scipy")
"""Modules of the extra `report` of pyproject.toml, which `analysis` imports."""


def missing(names: Iterable[str | None] = EXTRA) -> str | None:
    """A line on the first of these modules of the extra that this Python lacks; None if it has them all."""
    absent = next((name for name in names if name in EXTRA and find_spec(name) is None), None)
    install = shlex.join([sys.executable, "-m", "pip", "install", "disttrain[report]"])
    return absent and f"{absent} is not installed: {install}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        page="the HTML page",
        report="`report.json`",
        csv="`--csv`: the folder of the tables",
        parquet="`--parquet`: the folder of the tables",
        targets="`--check`: each target with the achieved figure and the verdict",
    )
    options.value(parser, "sweeps", "SWEEP", "sweeps of the report (the newest one)", nargs="*")
    options.tag_filter(parser)
    options.value(parser, "--base", "NAME", "base of speed-ups: a run, 16 gpus, 2 nodes or 2x8")
    text = "output folder (RUNS/SWEEP/report; with --tag report-TAG)"
    options.value(parser, "--out", "DIR", text, type=Path)
    text = "leave out the first N steps after each start, where the recorded warm-up is shorter"
    options.value(parser, "--warmup", "N", text, type=int, default=0)
    text = "leave out runs whose pre-flight had warnings (docs/your-cluster.md#pre-flight)"
    options.flag(parser, "--reject-warned", text)
    text = "another sweep to compare with: which is faster, and what differs"
    options.value(parser, "--against", "SWEEP", text)
    text = "also write each table as CSV with raw numbers (RUNS/SWEEP/report/csv); after the names of sweeps"
    options.value(parser, "--csv", "DIR", text, nargs="?", const="")
    text = "the same as Parquet (RUNS/SWEEP/report/parquet)"
    options.value(parser, "--parquet", "DIR", text, nargs="?", const="")
    text = "YAML file with currency, device_hour (prices) and grid_g_per_kwh: adds money and CO2"
    options.value(parser, "--prices", "FILE", text, type=Path)
    text = "name the cheapest size whose training ends within this time: 90min, 6h, 2d"
    options.value(parser, "--deadline", "TIME", text)
    options.value(parser, "--samples", "N", "samples of that training (the planned steps of the base)")
    text = "compare with the sweep's targets; exit code 1 if one is missed, 3 if the runs cannot tell"
    options.flag(parser, "--check", text)
    parser.add_argument("--sweep-end", type=int, help=argparse.SUPPRESS)  # of a report job: its submission


def run(args: argparse.Namespace) -> int:
    from disttrain.errors import ConfigError
    from jobs.cli import selection
    from jobs.status.run_state import read_runs

    if not args.sweeps:
        for flag in ("csv", "parquet"):  # argparse reads the name of a sweep after it as the folder
            name = getattr(args, flag)
            if name and name in selection.sweep_names(args.runs):
                raise ConfigError(
                    f"--{flag}={name!r} is the name of a sweep, not a folder: report {name} --{flag}, or "
                    f"--{flag}=./{name} for that folder"
                )
    sweeps = [selection.find_sweep(args.runs, name) for name in dict.fromkeys(args.sweeps)]
    if args.tags and not sweeps:
        tagged = selection.with_tags(read_runs(args.runs, progress=selection.progress), args.tags)
        sweeps = list(dict.fromkeys(state.sweep for state in tagged))
    sweeps = sweeps or [newest_sweep(args.runs)]
    against = None if args.against is None else _other_sweep(args.runs, args.against, sweeps)

    write_as_asked = functools.partial(
        write,
        args.runs,
        sweeps,
        out=args.out,
        base=args.base,
        tags=args.tags,
        against=against,
        tables={"csv": args.csv, "parquet": args.parquet},
        prices=args.prices,
        deadline=args.deadline,
        samples=args.samples,
        warmup=args.warmup,
        reject_warned=args.reject_warned,
        check=args.check,
    )
    if args.sweep_end is not None:
        from jobs.cli.submitting import run_report_job  # imports all that a submission needs

        return run_report_job(args, lambda: write_as_asked().page)
    written = write_as_asked()
    return _print_targets(written) if args.check else 0


def _print_targets(written: Written) -> int:
    """Print one line for each target; 0 if all are met, 1 if one is missed, 3 if the runs cannot tell."""
    from analysis.report.sections.targets import sentence  # imports numpy
    from analysis.results import targets
    from jobs.cli.command_output import add_json

    several = len({result.curve for result in written.targets}) > 1
    for result in written.targets:
        print(f"{result.curve}: {sentence(result)}" if several else sentence(result))
    add_json(targets=[asdict(result) for result in written.targets])
    return targets.exit_code(written.targets)


def _other_sweep(root: Path, name: str, sweeps: Sequence[str]) -> Path:
    """Folder of the sweep to compare with: a name in the runs folder, or a path to a sweep elsewhere."""
    from disttrain.errors import ConfigError
    from jobs.cli.selection import find_sweep

    if "/" in name.rstrip("/") and Path(name).is_dir():
        return Path(name)
    sweep = find_sweep(root, name)
    if sweep in sweeps:
        raise ConfigError(f"--against {name}: a sweep cannot be compared with itself; name another one")
    return root / sweep


def _states_with_usage(root: Path, sweeps: Sequence[str]) -> tuple[list[RunState], dict[Path, RunGpuHours]]:
    """The runs of the sweeps, and their GPU-hours, which are recorded for later reports."""
    from jobs.cli.selection import refresh_or_warn
    from jobs.status.gpu_hours import usage_of_runs
    from jobs.status.run_state import read_runs

    states = [state for sweep in sweeps for state in read_runs(root, sweep)]
    usage = usage_of_runs((state.run for state in states), write=True)
    return refresh_or_warn(states), usage


def write(
    root: Path,
    sweeps: Sequence[str],
    *,
    out: Path | None = None,
    tags: Sequence[str] = (),
    tables: Mapping[str, str | None] | None = None,
    **options: Any,
) -> Written:
    """Write the report and print its path.

    `tables` are folders for the tables by kind (`csv`, `parquet`): None for none, "" for one beside the page.
    `options` are further arguments of `analysis.report.write`.
    """
    from disttrain.errors import ConfigError
    from disttrain.records.json_files import read_json
    from jobs.cli import bench
    from jobs.cli.command_output import add_json
    from jobs.cli.progress_bar import progress_bar
    from jobs.cli.selection import with_tags
    from jobs.cli.tables import state_note

    if len(sweeps) > 1 and out is None:
        raise ConfigError("--out is needed for a report on several sweeps: the folder to write to")
    # imports numpy, pandas and matplotlib, which takes seconds: only after the names are checked
    from analysis import report

    out = out or root / sweeps[0] / "-".join(["report", *tags]).replace("/", "-")
    kept = {kind: Path(each or out / kind) for kind, each in (tables or {}).items() if each is not None}
    with progress_bar("writing the report"):
        states, usage = _states_with_usage(root, sweeps)
        paths = {state.run.path: state.run.path.parent.resolve() / state.name for state in states}
        written = report.write(
            [root / sweep for sweep in sweeps],
            out,
            states={
                paths[state.run.path]: report.KnownState(
                    state.displayed_state, state_note(state), state.attempts, usage.get(state.run.path)
                )
                for state in states
            },
            only={paths[state.run.path] for state in with_tags(states, tags)} if tags else None,
            tables=kept,
            **options,
        )
    document = read_json(written.page.with_name("report.json"))
    if options.get("against") is not None:
        sections = {section["id"]: section for section in document["sections"]}
        print(sections.get("comparison", {}).get("conclusion", "Nothing to compare: no finished run."))
    if results := bench.results_text(state.run for state in states):
        print(f"{results}\n")
    print(f"report of {', '.join(sweeps)}: {written.page}")
    for folder in kept.values():
        print(f"tables: {folder}")
    add_json(states, page=str(written.page), report=document, **{kind: str(kept[kind]) for kind in kept})
    return written


def named_or_newest_sweep(root: Path, name: str | None) -> str:
    """The sweep of that name, by default the newest one. Raises `ConfigError`."""
    from jobs.cli.selection import find_sweep

    return find_sweep(root, name) if name else newest_sweep(root)


def newest_sweep(root: Path) -> str:
    """The sweep with the latest submission. Raises `ConfigError` when there is no run."""
    from disttrain.errors import ConfigError
    from jobs.status.run_folders import runs_below

    last = max(runs_below(root), key=_submission_time, default=None)
    if last is None:
        raise ConfigError(f"no runs in {root} yet: {PROGRAM} sweep --nodes 1 2 4")
    return last.sweep


def _submission_time(run: RunDir) -> float:
    """Unix time of a run's last submission, or of its plan if it was never submitted."""
    intents = (path.stat().st_mtime for path in run.submissions.glob("*.intent.json"))
    return max(intents, default=run.run_json.stat().st_mtime)
