"""`completion`: print the script of argcomplete, which calls the command at the Tab key for candidates."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from jobs import PROGRAM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"])


def run(args: argparse.Namespace) -> int:
    """Print the completion of `disttrain`. `submit.py` is an argument of `python`: print the loader of
    argcomplete, the same for both shells, which completes programs that opt in."""
    from importlib import resources

    import argcomplete

    if PROGRAM == "disttrain":
        print(argcomplete.shellcode([PROGRAM], shell=args.shell))
    else:
        print((resources.files("argcomplete") / "bash_completion.d/_python-argcomplete").read_text(), end="")
    return 0


def complete() -> None:
    """Print the candidates for the word at the cursor, and exit. Files are the default."""
    import os

    import argcomplete

    from jobs.cli.arguments import build_parser, parsers

    parser = build_parser(os.environ["COMP_LINE"].split())
    for _, of_verb in parsers(parser):
        for action in of_verb._actions:
            metavar = str(action.metavar).split("[")[0]
            if completer := _COMPLETERS.get(action.dest) or _COMPLETERS.get(metavar):
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _sweeps(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    from jobs.status.run_folders import subfolders

    return subfolders(parsed_args.runs)


def _runs(prefix: str, parsed_args: argparse.Namespace, action: argparse.Action, **_: Any) -> list[str]:
    """`sweep/` first, and the runs of a sweep after that, so that only its folder is read."""
    from jobs.status.run_folders import runs_of, subfolders

    sweep, slash, _name = prefix.rpartition("/")
    if slash:
        return [f"{sweep}/{run.name}" for run in runs_of(parsed_args.runs, sweep)]
    sweeps = subfolders(parsed_args.runs)
    return [*(sweeps if action.nargs else ()), *(f"{name}/" for name in sweeps)]


def _profiles(prefix: str, **_: Any) -> Iterable[str]:
    from argcomplete import FilesCompleter

    from jobs.schedulers import profile_files

    return FilesCompleter()(prefix) if "/" in prefix else profile_files()


def _states(prefix: str, **_: Any) -> list[str]:
    from jobs.cli.selection import STATES

    return [_before_last_comma(prefix) + state for state in STATES]


def _settings(prefix: str, **_: Any) -> list[str]:
    """`key=` for each config key; after the `=` the values of a key that has few."""
    from disttrain.config.config_tree import config_fields
    from disttrain.config.options import BUILT_SECTIONS, built_in

    key, equals, values = prefix.partition("=")
    known = {name: _few_values(info.annotation) for name, info in config_fields()}
    known["optim.schedule"] = [*built_in("schedules")]
    known["parallel.strategy"] = ["auto", *built_in("parallel")]
    known["parallel.gradient_communication.scheme"] = [*built_in("parallel/schemes")]
    for section, package in BUILT_SECTIONS.items():
        known[f"{section}.kind"] = [*built_in(package)]
        for builder in built_in(package).values():
            options = [*builder.types, *["size"] * bool(builder.sizes)]
            known |= {f"{section}.{option}": [] for option in options if f"{section}.{option}" not in known}
    if equals:
        return [f"{key}={_before_last_comma(values)}{value}" for value in known.get(key, ())]
    return [f"{name}=" for name in known]


def _few_values(annotation: Any) -> list[str]:
    """The values of a `Literal` or a bool, also within a union; none for other types."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _few_values(part)]


def _before_last_comma(text: str) -> str:
    """The part of a list with commas that is typed already."""
    return text[: text.rfind(",") + 1]


_COMPLETERS = {
    "SWEEP": _sweeps,
    "RUN": _runs,
    "SWEEP|RUN": _runs,
    "NAME|FILE": _profiles,
    "STATE": _states,
    "set": _settings,
}
"""By metavar, up to its `[`, or by the name of the argument."""
