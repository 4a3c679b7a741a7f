"""The parser of all verbs. A verb is a row of `VERBS` and a module of that name in this package.

The module has `add_arguments(parser)`, for which it imports argparse alone at its top, and `run(args)`, which
imports the rest and returns the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NoReturn

from disttrain import __version__
from jobs import PROGRAM

VERBS = {
    "init": "write a config, a site profile and a batch script, as the start of a project",
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
    "predict": "predict sizes of a sweep that were not measured, with intervals",
    "bench": "benchmark a part of the cluster",
    "fabric": "the network between the ranks, and the environment variables for it",
    "open": "show the report of a sweep in a browser, or serve it to one",
    "tensorboard": "serve the logs of a sweep with TensorBoard",
    "completion": "print a script that completes command lines at the Tab key",
    "cluster": "run a real Slurm on this machine, with network namespaces as nodes",
}
EXAMPLES: dict[str | None, dict[str, str]] = {
    None: {
        "sweep --nodes 1 2 4 --wait": "sweeps/default.yaml on 1, 2 and 4 nodes",
        "sweep --nodes 1 2 4 --dry-run": "print what would be submitted, write nothing",
        "run --nodes 2 -- train.py --lr 3e-4": "a script of your own on two nodes",
        "status": "the state of every run",
        "report": "the efficiency report of the newest sweep",
        "cluster up": "a real Slurm with four nodes on this machine",
    },
    "init": {"init mytraining": "into a new folder"},
    "sweep": {
        "sweep my.yaml --gpus 4 8 16": "on 1x4, 1x8 and 2x8 GPUs, where a node has 8",
        "sweep --nodes 1 2 4 --wait": "sweeps/default.yaml on 1, 2 and 4 nodes, with a live table",
        "sweep sweeps/batch.yaml --nodes 1 2 --set train.local_batch_size=32,64 --repeats 3": "",
        "sweep --nodes 1 2 4 --dry-run": "print what would be submitted, write nothing",
    },
    "run": {
        "run my.yaml --nodes 2": "one run on two nodes",
        "run my.yaml --set optim.lr=0.01": "another run of the same sweep",
        "run --nodes 2 -- train.py --lr 3e-4": "a script of your own",
    },
    "status": {
        "status": "all runs",
        "status default --state failed,lost": "the failed and lost runs of one sweep",
        "status --long": "GPU-hours and queue time",
    },
    "annotate": {
        "annotate default --tag baseline --note 'before the upgrade'": "a tag and a note for one sweep",
        "annotate default/n2": "print those of one run",
    },
    "predict": {
        "predict my --calibrate --wait": "measure collectives on its largest size",
        "predict my --nodes 8 16 64": "step, throughput and efficiency of these sizes",
    },
    "bench comm": {
        "bench comm --nodes 2 4 --wait": "one job for each shape, then tables",
        "bench comm --nodes 2 --gpus-per-node 8 --max-mb 256": "messages up to 256 MiB",
    },
    "fabric lint": {
        "fabric lint job.sbatch --nccl 2.27.5": "the communication variables of a batch script",
        "fabric lint /etc/nccl.conf --root /": "those of a file, with the network of this machine",
    },
    "fabric explain": {
        "fabric explain": "the network of this node",
        "fabric explain --root copy-of-node7": "of a node whose files were copied",
    },
    "fabric ab": {
        "fabric ab NCCL_ALGO=Ring --nodes 2 --wait": "one variable",
        "fabric ab NCCL_PROTO=LL NCCL_ALGO=Ring --like default/n2": "for the step of a run",
    },
    "watch": {"watch default": "the runs of one sweep, until all have ended"},
    "show": {"show default/n2": "one run"},
    "logs": {
        "logs default/n2 -f": "rank 0, followed through requeues",
        "logs default/n2 --rank 3": "rank 3",
        "logs default/n2 --node 1": "agent and torchrun of node 1",
        "logs default/n2 --all -f": "all ranks and nodes, by time",
    },
    "cancel": {
        "cancel default": "all runs of one sweep",
        "cancel default/n2 --graceful": "let one run save a checkpoint first",
    },
    "resume": {
        "resume": "all runs that failed, stopped or were lost",
        "resume default --wait": "those of one sweep, with a live table",
    },
    "nodes": {
        "nodes": "the nodes that submissions exclude, and why",
        "nodes --clear n17": "use a node again",
        "nodes --exclude n18 --hours 48": "exclude a node by hand",
    },
    "clean": {
        "clean --failed --dry-run": "the runs that would be moved",
        "clean --failed": "move failed runs to the trash",
        "clean --restore": "undo the last clean",
    },
    "doctor": {
        "doctor": "problems of this cluster, worst first",
        "doctor --job --profile infiniband": "and of a node, with the options of a site profile",
        "doctor --write-profile mysite.yaml": "a site profile to start from",
    },
    "emulate": {"emulate --from default/n1 --out table.yaml": "write the layer table"},
    "ingest": {
        "ingest times.csv --sweep megatron": "runs of the sweep `megatron`",
        "ingest times.csv --global-batch-size 512": "a table without samples",
        "ingest times.csv --targets targets.yaml": "with targets for `report --check`",
    },
    "report": {
        "report": "the newest sweep",
        "report small large --out compared": "two sweeps in one report",
        "report new --against old": "is it faster, and what differs",
        "report --check": "and compare with the targets of the sweep file",
    },
    "open": {
        "open": "the report of the newest sweep",
        "open default --port 8000": "served on this port of localhost",
    },
    "tensorboard": {"tensorboard default": "the logs of one sweep"},
    "completion": {"completion bash": f'in ~/.bashrc: eval "$({PROGRAM} completion bash)"'},
    "cluster": {
        "cluster up --nodes 2": "two nodes",
        "cluster shell -- sinfo": "one Slurm command",
        "cluster down": "end all processes",
    },
    "cluster up": {"cluster up --nodes 2 --gpus-per-node 8": "two nodes with eight simulated GPUs each"},
    "cluster status": {"cluster status": "all clusters"},
    "cluster shell": {
        "cluster shell": "a shell on the cluster",
        f"cluster shell -- {PROGRAM} sweep --nodes 1 2": "a sweep on it",
    },
    "cluster down": {"cluster down --name mini": "one of several clusters"},
}
"""Arguments of `disttrain` and their effect, by verb; None for the program itself."""
_SCRIPT = re.compile(r"[^\s=]+\.py|-m")
_LAUNCHER = re.compile(r"(.*/)?(python[\d.]*|torchrun|srun)")
"""Program before a script; `run` leaves it out, with its options."""
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


def refuse_without_separator(words: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raise `UsageError` for a script among `words` of `run` or `sweep`, with the corrected command line."""
    for at, word in enumerate(words):
        option = parser._option_string_actions.get(words[at - 1]) if at else None
        if _SCRIPT.fullmatch(word) and (option is None or option.nargs is not None):
            own = itertools.takewhile(lambda each: not _LAUNCHER.fullmatch(each), words[:at])
            right = f"{parser.prog} {shlex.join([*own, '--', *words[at:]])}"
            verb = verb_of(parser)
            message = f"a script and its arguments come after `--`, options of `{verb}` before it: {right}"
            raise UsageError(message, verb)


def examples_text(verb: str | None) -> str:
    """The examples of a verb, as the end of its help; empty without any."""
    lines = EXAMPLES.get(verb, {})
    if not lines:
        return ""
    width = max(len(line) for line, effect in lines.items() if effect or len(lines) == 1)
    shown = [f"  {PROGRAM} {line.ljust(width)}  {effect}".rstrip() for line, effect in lines.items()]
    return "\n".join(["example:" if len(lines) == 1 else "examples:", *shown])


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
