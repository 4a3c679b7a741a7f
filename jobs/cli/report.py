"""`report`: write the efficiency report of one sweep, or of several together."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli import bench, run_lookup, sweep_end
from jobs.cli.command_output import add_json
from jobs.cli.polling import refresh_or_warn
from jobs.cli.progress_bar import progress, progress_bar
from jobs.cli.selection import with_tags
from jobs.cli.status_table import state_note
from jobs.status.gpu_hours import record_usage
from jobs.status.run_folders import runs_of
from jobs.status.run_state import RunState, read_runs

if TYPE_CHECKING:
    from analysis.report import Written
    from analysis.results.targets import TargetResult

_NO_COSTS: Mapping[str, Any] = MappingProxyType({})


def run(args: argparse.Namespace) -> int:
    if not args.sweeps:
        _refuse_sweep_as_folder(args)
    sweeps = [run_lookup.find_sweep(args.runs, name) for name in dict.fromkeys(args.sweeps)]
    if args.tags and not sweeps:
        every = with_tags(read_runs(args.runs, progress=progress), args.tags)
        sweeps = list(dict.fromkeys(state.sweep for state in every))
    sweeps = sweeps or [newest_sweep(args.runs)]
    against = None if args.against is None else _other_sweep(args.runs, args.against, sweeps)
    if args.sweep_end is not None:
        return sweep_end.run_report_job(args, lambda: _write_as_given(args, sweeps, against).page)
    written = _write_as_given(args, sweeps, against)
    return _print_targets(written.targets) if args.check else 0


def _write_as_given(args: argparse.Namespace, sweeps: list[str], against: Path | None) -> Written:
    return write(
        args.runs,
        sweeps,
        out=args.out,
        base=args.base,
        tags=args.tags,
        against=against,
        tables={"csv": args.csv, "parquet": args.parquet},
        costs={"prices": args.prices, "deadline": args.deadline, "samples": args.samples},
        as_json=args.json,
        warmup=args.warmup,
        reject_warned=args.reject_warned,
        check=args.check,
    )


def _print_targets(found: Sequence[TargetResult]) -> int:
    """Print one line for each target; 0 if all are met, 1 if one is missed, 3 if the runs cannot tell."""
    from analysis.report.sections.targets import sentence  # imports numpy
    from analysis.results import targets

    several = len({result.curve for result in found}) > 1
    for result in found:
        print(f"{result.curve}: {sentence(result)}" if several else sentence(result))
    add_json(targets=[targets.as_json(result) for result in found])
    return targets.exit_code(found)


def _refuse_sweep_as_folder(args: argparse.Namespace) -> None:
    """`ConfigError` for `report --csv NAME` where NAME is a sweep: argparse reads it as the folder."""
    for flag in ("csv", "parquet"):
        name = getattr(args, flag)
        if name and name in run_lookup.sweep_names(args.runs):
            raise ConfigError(
                f"--{flag}={name!r} is the name of a sweep, not a folder: report {name} --{flag}, or "
                f"--{flag}=./{name} for that folder"
            )


def _other_sweep(root: Path, name: str, sweeps: Sequence[str]) -> Path:
    """Folder of the sweep to compare with: a name in the runs folder, or a path to a sweep elsewhere."""
    if "/" in name.rstrip("/") and Path(name).is_dir():
        return Path(name)
    found = run_lookup.find_sweep(root, name)
    if found in sweeps:
        raise ConfigError(f"--against {name}: a sweep cannot be compared with itself; name another one")
    return root / found


def write(
    root: Path,
    sweeps: Sequence[str],
    *,
    out: Path | None = None,
    base: str | None = None,
    tags: Sequence[str] = (),
    against: Path | None = None,
    tables: Mapping[str, str | None] | None = None,
    costs: Mapping[str, Any] = _NO_COSTS,
    as_json: bool = False,
    **options: Any,
) -> Written:
    """Write the report and print its path.

    `tables` are folders for the tables by kind (`csv`, `parquet`): None for none, "" for one beside the page.
    `costs` are fields of `analysis.report.CostQuestion`, `options` further arguments of its `write`.
    """
    if len(sweeps) > 1 and out is None:
        raise ConfigError("--out is needed for a report on several sweeps: the folder to write it to")
    # imports numpy, pandas and matplotlib, which takes seconds: only after the names are checked
    from analysis import report

    out = out or root / sweeps[0] / "-".join(["report", *tags]).replace("/", "-")
    with progress_bar("writing the report"):
        found = [state for sweep in sweeps for state in read_runs(root, sweep)]
        kept = {kind: Path(each or out / kind) for kind, each in (tables or {}).items() if each is not None}
        record_usage(state.run for state in found)
        states = refresh_or_warn(found)
        written = report.write(
            [root / sweep for sweep in sweeps],
            out,
            base=base,
            states={
                _resolved(state): report.KnownState(state.displayed_state, state_note(state), state.attempts)
                for state in states
            },
            only=_tagged(root, sweeps, tags),
            against=against,
            tables=kept,
            costs=report.CostQuestion(**costs),
            **options,
        )
    page = written.page
    if as_json:
        folders = {kind: str(folder) for kind, folder in kept.items()}
        add_json(states, page=str(page), report=read_json(page.with_name("report.json")), **folders)
    else:
        if against is not None:
            print(_verdict(read_json(page.with_name("report.json"))))
        if results := bench.results_text(state.run for state in found):
            print(f"{results}\n")
        print(f"report of {', '.join(sweeps)}: {page}")
        for folder in kept.values():
            print(f"tables: {folder}")
    return written


def _verdict(report: Mapping[str, Any]) -> str:
    """Conclusion of the comparison with another sweep."""
    found = (section["conclusion"] for section in report["sections"] if section["id"] == "comparison")
    return str(next(found, "Nothing to compare: no finished run."))


def _tagged(root: Path, sweeps: Sequence[str], tags: Sequence[str]) -> set[Path] | None:
    """Resolved folders of the runs with these tags; None without tags."""
    if not tags:
        return None
    return {_resolved(state) for sweep in sweeps for state in with_tags(read_runs(root, sweep), tags)}


def _resolved(state: RunState) -> Path:
    return state.run.path.parent.resolve() / state.name


def newest_sweep(root: Path) -> str:
    """The sweep with the latest submission. Raises `ConfigError` when there is no run."""
    last = {
        sweep: max(_submission_time(run) for run in runs)
        for sweep in run_lookup.sweep_names(root)
        if (runs := runs_of(root, sweep))
    }
    if not last:
        raise ConfigError(f"no runs in {root} yet: python submit.py sweep --nodes 1 2 4")
    return max(last, key=lambda sweep: last[sweep])


def _submission_time(run: RunDir) -> float:
    """Unix time of a run's last submission, or of its plan if it was never submitted."""
    intents = (path.stat().st_mtime for path in run.submissions.glob("*.intent.json"))
    return max(intents, default=run.run_json.stat().st_mtime)
