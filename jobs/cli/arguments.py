"""Command-line arguments of all verbs. Imports argparse and the version alone: help appears within 0.1 s."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NoReturn

from disttrain import __version__
from jobs.cli.argument_types import above_zero, number_of_runs, positive
from jobs.cli.examples import examples_text
from jobs.cli.fabric_arguments import add_fabric
from jobs.cli.preflight_arguments import add_nodes, add_skip_preflight
from jobs.cli.result_arguments import add_ingest, add_report, add_tag_filter
from jobs.cli.scheduler_arguments import add_cluster, add_doctor

PROGRAM = "submit.py"
DEFAULT_SWEEP = Path(__file__).resolve().parents[2] / "sweeps" / "default.yaml"

_NAMES = "A RUN is `sweep/run`, or a run's name if only one sweep has a run of that name."


class UsageError(Exception):
    """Arguments that the parser refuses. The message is one line; `verb` is None before a verb is known."""

    def __init__(self, message: str, verb: str | None) -> None:
        super().__init__(message)
        self.verb = verb


class _Parser(argparse.ArgumentParser):
    """Raise `UsageError` with one line that names the nearest valid argument. The help ends with examples."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.epilog = self.epilog or examples_text(verb_of(self))
        self.set_defaults(parser=self)

    def error(self, message: str) -> NoReturn:
        from disttrain.errors import nearest

        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if found:
            word, choices = found[1], [choice.strip(" '") for choice in found[2].split(",")]
            name = message.split(":")[0].removeprefix("argument ")
            message = f"{name}: {word!r} is not one of {', '.join(choices)}{nearest(word, choices)}"
        elif message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            known = self._option_string_actions.items()
            options = [name for name, each in known if name[:2] == "--" and each.help != argparse.SUPPRESS]
            hint = nearest(word.split("=")[0], options)
            if verb_of(self) is None:
                hint = f"; only {' and '.join(options)} may stand before the verb"
            message = f"unknown argument {word!r}{hint}"
        raise UsageError(f"{message} (see {self.prog} --help)", verb_of(self))


def verb_of(parser: argparse.ArgumentParser) -> str | None:
    """The verb of a parser, for example `status` or `cluster up`; None for the parser of all verbs."""
    return parser.prog.removeprefix(PROGRAM).strip() or None


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs. `parser` of the parsed arguments is the parser of their verb."""
    parser = _Parser(
        prog=PROGRAM,
        description="Submit, watch and report multi-node PyTorch training runs.",
        epilog=f"{examples_text(None)}\n\n{_NAMES}",
    )
    parser.add_argument("--version", action="version", version=f"disttrain {__version__}")
    json_option = _Parser(add_help=False)
    json_option.add_argument("--json", action="store_true", help="print one JSON document (docs/json.md)")
    runs_option = _Parser(add_help=False)
    runs_option.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all sweeps (runs)"
    )
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")

    def verb(name: str, text: str, *, json: bool = True) -> argparse.ArgumentParser:
        parents = [json_option, runs_option] if json else [runs_option]
        return subparsers.add_parser(name, help=text, description=text, parents=parents)

    _add_sweep(verb("sweep", "submit the missing runs of a sweep: one for each combination of its axes"))
    _add_run(verb("run", "submit one run"))
    _add_status(verb("status", "print the state of each run"))
    _add_annotate(verb("annotate", "print or change the tags and notes of sweeps and runs"))
    _add_watch(verb("watch", "show a live table until all runs have ended; Ctrl-C does not end the runs"))
    show = verb("show", "print one run in full: state, config, attempts, nodes, results, files")
    show.add_argument("run", metavar="RUN")
    _add_logs(verb("logs", "print the log of rank 0, of another rank, or of a node"))
    cancel = verb("cancel", "end queued and running runs; their files stay")
    cancel.add_argument("runs_given", nargs="+", metavar="RUN", help="runs or whole sweeps")
    cancel.add_argument("--graceful", action="store_true", help="let running runs save a checkpoint and end")
    cancel.add_argument("--dry-run", action="store_true", help="print the runs to end, change nothing")
    resume = verb(
        "resume", "submit failed, stopped, cancelled and lost runs again, with their recorded config"
    )
    resume.add_argument("runs_given", nargs="*", metavar="RUN", help="runs or whole sweeps (all)")
    resume.add_argument("--dry-run", action="store_true", help="print the runs to submit, change nothing")
    add_tag_filter(resume)
    add_cluster(resume)
    _add_wait(resume)
    add_nodes(
        verb("nodes", "print or change the nodes that submissions exclude, after a failed check or by hand")
    )
    _add_clean(verb("clean", "move failed, stale or named runs to a trash folder, and back"))
    add_doctor(
        verb("doctor", "examine the cluster, this machine and the runs folder; name problems and fixes")
    )
    _add_emulate(verb("emulate", "write the layer table of a measured run, which an emulated model replays"))
    add_ingest(verb("ingest", "make runs of the step times that another program wrote as CSV"))
    add_report(verb("report", "write the efficiency report of a sweep"))
    _add_bench(subparsers, [json_option, runs_option])
    add_fabric(subparsers, [json_option, runs_option], _add_annotated_submission)
    _add_page(verb("open", "show the report of a sweep in a browser, or serve it to one", json=False))
    _add_page(verb("tensorboard", "serve the logs of a sweep with TensorBoard", json=False))
    _add_completion(subparsers)
    text = "run a real Slurm on this machine, with network namespaces as nodes"
    _add_minicluster(subparsers.add_parser("cluster", help=text, description=text), json_option)
    return parser


def _add_bench(subparsers: argparse._SubParsersAction[_Parser], parents: list[_Parser]) -> None:
    text = "benchmark a part of the cluster"
    parser = subparsers.add_parser("bench", help=text, description=text)
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    text = "measure collectives and forms of gradient communication, one job for each shape"
    comm = actions.add_parser("comm", help=text, description=text, parents=parents)
    comm.add_argument("--nodes", nargs="+", metavar="N", default=["2"], help="node counts (2)")
    comm.add_argument("--gpus-per-node", nargs="+", metavar="N", help="ranks on each node (1)")
    comm.add_argument(
        "--device", choices=["auto", "cpu", "cuda", "shared"], default="auto", help="resources.device (auto)"
    )
    comm.add_argument(
        "--max-mb", type=above_zero, default=16.0, metavar="MIB", help="largest message in MiB (16)"
    )
    comm.add_argument(
        "--rounds", type=positive, default=15, metavar="N", help="repeats of each measurement (15)"
    )
    comm.add_argument(
        "--width", type=positive, default=1024, metavar="N", help="width of the model's layers (1024)"
    )
    comm.add_argument("--layers", type=positive, default=8, metavar="N", help="layers of the model (8)")
    comm.add_argument(
        "--rows", type=positive, default=16, metavar="N", help="samples of a rank in a step (16)"
    )
    _add_annotation(comm, "the sweep")
    _add_submission(comm)


def _add_completion(subparsers: argparse._SubParsersAction[_Parser]) -> None:
    text = "print a script that completes command lines of submit.py at the Tab key"
    parser = subparsers.add_parser("completion", help=text, description=text)
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.add_argument("--line", help=argparse.SUPPRESS)


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="sweeps to print (all)")
    _add_state(parser)
    as_what = parser.add_mutually_exclusive_group()
    as_what.add_argument("--long", action="store_true", help="print GPU-hours and queue time of all attempts")
    text = "write the runs as CSV, with their config (standard output); after the names of sweeps"
    as_what.add_argument("--csv", nargs="?", const="-", metavar="FILE", help=text)
    as_what.add_argument("--parquet", metavar="FILE", help="write the same table as Parquet")


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="sweeps to watch (those with active runs)")
    _add_state(parser)


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", metavar="STATE[,STATE...]", help="only runs in these states: failed,lost")
    add_tag_filter(parser)


def _add_annotation(parser: argparse.ArgumentParser, of: str) -> None:
    parser.add_argument(
        "--tag",
        dest="tags",
        nargs="+",
        action="extend",
        default=[],
        metavar="TAG",
        help=f"tags to add to {of}",
    )
    parser.add_argument("--note", metavar="TEXT", help=f"note on {of}, in place of an earlier one")


def _add_annotate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="+", metavar="SWEEP|RUN")
    _add_annotation(parser, "each")
    parser.add_argument(
        "--untag", nargs="+", action="extend", default=[], metavar="TAG", help="tags to remove from each"
    )


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="sweep file (sweeps/default.yaml; none for a script)"
    )
    parser.add_argument("--nodes", nargs="+", metavar="N", help="node counts: an axis")
    parser.add_argument("--gpus-per-node", nargs="+", metavar="N", help="ranks on each node: an axis")
    text = "numbers of GPUs: an axis that fills a node before the next (--gpus-per-node, or the site profile)"
    parser.add_argument("--gpus", nargs="+", metavar="N", help=text)
    _add_set(
        parser,
        "KEY=VALUE[,VALUE...]",
        "config values; commas separate the values of an axis, [a, b] is one list value",
    )
    parser.add_argument("--repeats", metavar="N", help="repeats of each combination")
    parser.add_argument(
        "--scaling",
        metavar="weak|strong",
        help="batch size that is constant over ranks: the local or the global one",
    )
    parser.add_argument(
        "--grid", nargs="+", default=[], metavar="NAME", help="grids of the file to expand (all)"
    )
    _add_annotation(parser, "the sweep")
    _add_submission(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="config file; the axes of a sweep file are ignored"
    )
    parser.add_argument("--nodes", metavar="N", help="node count")
    parser.add_argument("--gpus-per-node", metavar="N", help="ranks on each node")
    parser.add_argument(
        "--from", dest="start_from", metavar="DIR", help="start from this checkpoint: .../step-NNNNNNNN"
    )
    _add_set(parser, "KEY=VALUE", "config values; short ones are part of the run's name")
    parser.add_argument("--run-name", metavar="NAME", help="name of the run (its nodes and config values)")
    _add_annotation(parser, "the run")
    _add_submission(parser)


def _add_set(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar=metavar, help=text)


def _add_submission(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="name of the sweep (the file name without .yaml)")
    add_cluster(parser)
    parser.add_argument(
        "--on-end",
        metavar="COMMAND",
        help="shell command to call when the sweep has ended and when a run has failed (job.on_end)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted, write nothing")
    parser.add_argument("--yes", action="store_true", help="submit also more than 200 runs")
    parser.add_argument(
        "--all-scripts",
        action="store_true",
        help="let a dry run print each batch script in full",
    )
    parser.add_argument(
        "--test-only",
        action="store_true",
        help="a dry run that validates each job with sbatch --test-only; exit code 1 if Slurm refuses one",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="a dry run that also estimates the peak memory of a rank of each run; needs no GPU",
    )
    _add_wait(parser)


def _add_annotated_submission(parser: argparse.ArgumentParser) -> None:
    _add_annotation(parser, "the sweep")
    _add_submission(parser)


def _add_wait(parser: argparse.ArgumentParser) -> None:
    add_skip_preflight(parser)
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="start the runs at step 1; their checkpoints are kept in checkpoints.aside",
    )
    at_once = parser.add_mutually_exclusive_group()
    at_once.add_argument(
        "--max-running",
        type=number_of_runs,
        metavar="N",
        help="let at most N runs of the sweep run at the same time (all)",
    )
    at_once.add_argument(
        "--serial", action="store_true", help="the same as --max-running 1: no run disturbs another's timings"
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="show progress until all runs have ended; exit code 1 if any failed",
    )
    parser.add_argument(
        "--no-report",
        action="store_true",
        help="submit no report job after the runs (--wait submits none either)",
    )


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run ends")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="log of this rank (0)")
    which.add_argument("--node", type=int, metavar="N", help="log of this node: agent and torchrun")
    which.add_argument("--all", action="store_true", help="logs of all ranks and nodes, by time")
    parser.add_argument("--attempt", type=int, metavar="K", help="attempt (the last)")


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_given", nargs="*", metavar="RUN", help="runs or whole sweeps, in any state")
    parser.add_argument(
        "--failed", action="store_true", help="select failed, stopped, cancelled, lost and unreadable runs"
    )
    parser.add_argument("--stale", action="store_true", help="select runs done by older code")
    add_tag_filter(parser)
    trash = parser.add_mutually_exclusive_group()
    trash.add_argument(
        "--restore", action="store_true", help="move runs back (without RUN: those of the last clean)"
    )
    trash.add_argument("--purge", action="store_true", help="delete the trash for good")
    parser.add_argument("--dry-run", action="store_true", help="print the moves or deletions, change nothing")


def _add_emulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="from_run", metavar="RUN", required=True, help="a run with telemetry.layer_passes > 0"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="output file (RUN-table.yaml)")


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", nargs="?", metavar="SWEEP", help="sweep (the newest one)")
    parser.add_argument("--port", type=int, metavar="N", help="serve on this port of localhost (a free one)")


def _add_minicluster(parser: argparse.ArgumentParser, json_option: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, *, prints: bool = True) -> argparse.ArgumentParser:
        parents = [json_option] if prints else []
        made = actions.add_parser(name, help=text, description=text, parents=parents)
        made.add_argument("--name", help="name of the cluster (up: mini; else the only cluster)")
        return made

    up = action("up", "bring a cluster up (needs root; installs nothing)")
    up.add_argument("--nodes", type=int, default=4, metavar="N", help="nodes (4)")
    up.add_argument("--gpus-per-node", type=int, default=4, metavar="N", help="simulated GPUs of a node (4)")
    up.add_argument(
        "--link", default="1gbit", metavar="RATE", help="rate of each node's link, or none (1gbit)"
    )
    up.add_argument("--no-accounting", action="store_true", help="no slurmdbd and no MariaDB")
    up.add_argument(
        "--grace-s",
        type=int,
        default=30,
        metavar="S",
        help="seconds that a pre-empted job may still run (30)",
    )
    up.add_argument(
        "--short-timeouts", action="store_true", help="reduce Slurm's timeouts to seconds, for fault tests"
    )
    action("status", "print nodes, partitions and links of all clusters")
    text = "run a shell, or the command after --, whose Slurm commands use the cluster"
    shell = action("shell", text, prints=False)
    shell.add_argument(
        "--node", type=int, metavar="I", help="run on node I instead of this machine (needs root)"
    )
    shell.add_argument("command", nargs="*", metavar="-- COMMAND", help="command to run (your shell)")
    action("down", "end all processes of a cluster and remove its files")
