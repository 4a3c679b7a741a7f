"""The parser of all verbs. A verb is a row of `VERBS` and a module of that name in this package.

The module has `add_arguments(parser)`, for which it imports argparse alone at its top, and `run(args)`, which
imports the rest and returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

from disttrain import __version__
from jobs.cli.examples import examples_text

PROGRAM = "submit.py"
VERBS = {
    "sweep": "submit the missing runs of a sweep: one for each combination of its axes",
    "run": "submit one run",
    "status": "print the state of each run",
    "annotate": "print or change the tags and notes of sweeps and runs",
    "watch": "show a live table until all runs have ended; Ctrl-C does not end the runs",
    "show": "print one run in full: state, config, attempts, nodes, results, files",
    "logs": "print the log of rank 0, of another rank, or of a node",
    "cancel": "end queued and running runs; their files stay",
    "resume": "submit failed, stopped, cancelled and lost runs again, with their recorded config",
    "nodes": "print or change the nodes that submissions exclude, after a failed check or by hand",
    "clean": "move failed, stale or named runs to a trash folder, and back",
    "doctor": "examine the cluster, this machine and the runs folder; name problems and fixes",
    "emulate": "write the layer table of a measured run, which an emulated model replays",
    "ingest": "make runs of the step times that another program wrote as CSV",
    "report": "write the efficiency report of a sweep",
    "bench": "benchmark a part of the cluster",
    "fabric": "the network between the ranks, and the environment variables for it",
    "open": "show the report of a sweep in a browser, or serve it to one",
    "tensorboard": "serve the logs of a sweep with TensorBoard",
    "completion": "print a script that completes command lines of submit.py at the Tab key",
    "cluster": "run a real Slurm on this machine, with network namespaces as nodes",
}
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

        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            word, choices = choice[1], [name.strip(" '") for name in choice[2].split(",")]
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


def build_parser(verbs: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of all verbs, with the arguments of these ones.

    `parser` of the parsed arguments is the parser of their verb.
    """
    parser = _Parser(
        prog=PROGRAM,
        description="Submit, watch and report multi-node PyTorch training runs.",
        epilog=f"{examples_text(None)}\n\n{_NAMES}",
    )
    parser.add_argument("--version", action="version", version=f"disttrain {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, text in VERBS.items():
        of_verb = subparsers.add_parser(name, help=text, description=text)
        if name in verbs:
            importlib.import_module(f"jobs.cli.{name}").add_arguments(of_verb)
    return parser


def parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each verb of a parser and its own parser, `cluster up` as two words."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        for of_verb in action.choices.values():
            yield from parsers(of_verb)
    if not nested:
        yield str(verb_of(parser)), parser
