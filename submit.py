#!/usr/bin/env python
"""Place, watch and report multi-node PyTorch training runs: `python submit.py --help`.

Only argparse is imported here, so that help is there at once; each verb is a module of `jobs.cli`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

EXIT_BAD_INPUT = 2  # as `disttrain.errors.EXIT_BAD_INPUT`
EXIT_INTERRUPTED = 130

DEFAULT_SWEEP = Path(__file__).resolve().parent / "sweeps" / "default.yaml"

_EPILOG = """\
examples:
  python submit.py sweep --nodes 1 2 4 --wait         sweeps/default.yaml on 1, 2 and 4 nodes
  python submit.py sweep sweeps/batch.yaml --nodes 1 2 --set train.local_batch_size=32,64 --repeats 3
  python submit.py sweep --nodes 1 2 4 --dry-run      say what would be done, do nothing
  python submit.py status                             what became of every run
  python submit.py report                             the efficiency report of the newest sweep
  python submit.py cluster up                         a real Slurm of four nodes on this machine

A RUN is `sweep/run`, or the run's name alone where only one sweep has it.
"""


class _Parser(argparse.ArgumentParser):
    """A mistake is one line on stderr with the nearest valid word, and exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        from disttrain.errors import nearest

        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if found:
            word, choices = found[1], [choice.strip(" '") for choice in found[2].split(",")]
            name = message.split(":")[0].removeprefix("argument ")
            message = f"{name}: {word!r} is not one of {', '.join(choices)}{nearest(word, choices)}"
        elif message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            options = [option for option in self._option_string_actions if option.startswith("--")]
            message = f"unknown argument {word!r}{nearest(word.split('=')[0], options)}"
        self.exit(EXIT_BAD_INPUT, f"error: {message} (see {self.prog} --help)\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command line; its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    given, unknown = build_parser().parse_known_args(arguments)
    if unknown:  # reported by the verb's own parser, which knows what was meant
        given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    given.argv = arguments
    try:
        return int(importlib.import_module(f"jobs.cli.{given.verb}").run(given))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `submit.py status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from disttrain.errors import ConfigError

        if not isinstance(error, ConfigError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. What it reads names the parser of its verb as `parser`."""
    parser = _Parser(
        prog="submit.py",
        description="Place, watch and report multi-node PyTorch training runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    speaking = _Parser(add_help=False)
    speaking.add_argument("--json", action="store_true", help="print JSON")
    common = _Parser(add_help=False, parents=[speaking])
    common.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where runs live (runs)"
    )
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        made = subparsers.add_parser(name, help=text, description=text, parents=[common])
        made.set_defaults(parser=made)
        return made

    _add_sweep(verb("sweep", "submit what is missing of a sweep: one run for each combination of its axes"))
    _add_run(verb("run", "submit one run"))
    status = verb("status", "what became of each run")
    status.add_argument("sweeps", nargs="*", metavar="SWEEP", help="sweeps to show (all)")
    status.add_argument(
        "--long", action="store_true", help="GPU-hours and time in the queue, of all attempts"
    )
    watch = verb("watch", "live table of runs until all have ended; Ctrl-C leaves them running")
    watch.add_argument("sweeps", nargs="*", metavar="SWEEP", help="sweeps to watch (those with work left)")
    show = verb("show", "everything there is to know about one run")
    show.add_argument("run", metavar="RUN")
    _add_logs(verb("logs", "the log of a run: rank 0's, or another's"))
    cancel = verb("cancel", "end runs that wait or run; what they wrote stays")
    cancel.add_argument("runs_given", nargs="+", metavar="RUN", help="runs or whole sweeps")
    cancel.add_argument(
        "--graceful", action="store_true", help="let runs at work save their state and leave by themselves"
    )
    resume = verb("resume", "go on with runs that failed, stopped, were cancelled or got lost, as they were")
    resume.add_argument("runs_given", nargs="*", metavar="RUN", help="runs or whole sweeps (all)")
    _add_cluster(resume)
    _add_wait(resume)
    _add_clean(verb("clean", "move failed, stale or named runs to a trash folder; nothing is deleted"))
    emulate = verb("emulate", "write the table of layers that an emulated model replays, from a measured run")
    emulate.add_argument(
        "--from", dest="from_run", metavar="RUN", required=True, help="a run that timed its layers"
    )
    emulate.add_argument("--out", type=Path, metavar="FILE", help="where to write (RUN-table.yaml)")
    report = verb("report", "write the efficiency report of a sweep")
    report.add_argument(
        "sweeps", nargs="*", metavar="SWEEP", help="sweeps to report on together (the newest)"
    )
    report.add_argument("--base", metavar="NAME", help="run or shape that speed-up is relative to")
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write (RUNS/SWEEP/report)")
    text = "a real Slurm on this machine, to try things on: nodes are network namespaces"
    _add_minicluster(subparsers.add_parser("cluster", help=text, description=text), speaking)
    return parser


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default=str(DEFAULT_SWEEP), metavar="FILE", help="sweep file (sweeps/default.yaml)"
    )
    parser.add_argument("--nodes", nargs="+", metavar="N", help="node counts: an axis")
    parser.add_argument("--gpus-per-node", nargs="+", metavar="N", help="ranks on each node: an axis")
    _add_set(parser, "KEY=VALUE[,VALUE...]", "config values; commas make an axis, [a, b] is one list value")
    parser.add_argument("--repeats", metavar="N", help="launches of each combination")
    parser.add_argument("--scaling", metavar="weak|strong", help="hold the local or the global batch size")
    parser.add_argument("--grid", nargs="+", default=[], metavar="NAME", help="only these grids of the file")
    _add_placing(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="config file; the axes of a sweep file are passed over")
    parser.add_argument("--nodes", metavar="N", help="node count")
    parser.add_argument("--gpus-per-node", metavar="N", help="ranks on each node")
    parser.add_argument(
        "--from", dest="start_from", metavar="DIR", help="start from this checkpoint: .../step-NNNNNNNN"
    )
    _add_set(parser, "KEY=VALUE", "config values; each becomes a part of the run's name")
    _add_placing(parser)


def _add_set(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar=metavar, help=text)


def _add_placing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="name of the sweep (the file's, less .yaml)")
    _add_cluster(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    parser.add_argument(
        "--test-only", action="store_true", help="a dry run that asks Slurm as well: 1 if it refuses a job"
    )
    _add_wait(parser)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", choices=["auto", "slurm", "local"], default="auto", help="auto: Slurm where it answers"
    )
    parser.add_argument(
        "--profile",
        metavar="NAME|FILE",
        help="site profile (the run's own, $DISTTRAIN_PROFILE or generic)",
    )
    parser.add_argument(
        "--slurm", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="keys of the profile, for this submission: partition=gpu account=physics",
    )  # fmt: skip


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", action="store_true", help="show progress until all have ended; 1 if any failed"
    )
    parser.add_argument(
        "--no-report",
        action="store_true",
        help="no job that writes the report once all have ended (there is none with --wait)",
    )


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it grows, until the run ends")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="log of this rank (0)")
    which.add_argument("--node", type=int, metavar="N", help="log of this node: agent and torchrun")
    parser.add_argument("--attempt", type=int, metavar="K", help="of this attempt (the last)")


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs_given", nargs="*", metavar="RUN", help="runs or whole sweeps, whatever their state"
    )
    parser.add_argument("--failed", action="store_true", help="all that failed, got lost or cannot be read")
    parser.add_argument("--stale", action="store_true", help="all that were finished by older code")
    parser.add_argument("--dry-run", action="store_true", help="say what would be moved")


def _add_minicluster(parser: argparse.ArgumentParser, speaking: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text, parents=[speaking])
        made.set_defaults(parser=made)
        made.add_argument("--name", help="name of the cluster (mini, or the only one there is)")
        return made

    up = action("up", "bring a cluster up (as root; installs nothing)")
    up.add_argument("--nodes", type=int, default=4, metavar="N", help="nodes (4)")
    up.add_argument("--gpus-per-node", type=int, default=4, metavar="N", help="pretended GPUs of a node (4)")
    up.add_argument(
        "--link", default="1gbit", metavar="RATE", help="rate of each node's link, or none (1gbit)"
    )
    up.add_argument("--no-accounting", action="store_true", help="no slurmdbd and no MariaDB")
    up.add_argument(
        "--grace-s", type=int, default=30, metavar="S", help="seconds a pre-empted job may go on (30)"
    )
    up.add_argument(
        "--short-timeouts", action="store_true", help="cut Slurm's own delays to seconds, to try faults"
    )
    action("status", "nodes, partitions and links of the clusters there are")
    shell = action("shell", "a shell, or the command after --, whose Slurm commands use the cluster")
    shell.add_argument("--node", type=int, metavar="I", help="on node I rather than on this machine (root)")
    shell.add_argument("command", nargs="*", metavar="-- COMMAND", help="what to run (your shell)")
    action("down", "end everything of a cluster; nothing of it is left")


if __name__ == "__main__":
    sys.exit(main())
