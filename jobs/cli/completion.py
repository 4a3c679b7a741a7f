"""`completion`: print a completion script for bash or zsh.

The script calls `submit.py completion SHELL --line LINE` at each press of Tab. That prints the kind of the
candidates (`words`, `files` or `folders`) and then one candidate a line.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from jobs.cli.arguments import PROGRAM, build_parser
from jobs.status.run_folders import subfolders

_FOLDER = Path(__file__).resolve().parent
_REPORT = re.compile(r"report(-.*)?")
"""Folders of reports, which lie among the runs of a sweep: `report`, and `report-TAG` by `report --tag`."""


def run(args: argparse.Namespace) -> int:
    if args.line is None:
        command = shlex.join([sys.executable, str(_FOLDER.parents[1] / PROGRAM)])
        print((_FOLDER / f"completion.{args.shell}").read_text().replace("@COMMAND@", command), end="")
        return 0
    words, current = split(args.line)
    found = candidates(words, current)
    kept = 0
    if args.shell == "bash":  # bash completes only the part after the last `=` or `:`
        kept = max(current.rfind("="), current.rfind(":")) + 1
    print(found.kind, *(word[kept:] for word in found.words), sep="\n")
    return 0


@dataclass(frozen=True)
class Candidates:
    """Words that may follow, or files or folders, which the shell lists itself."""

    words: tuple[str, ...] = ()
    kind: Literal["words", "files", "folders"] = "words"


@dataclass
class _Typed:
    """The words before the cursor, as argparse would take them."""

    parser: argparse.ArgumentParser
    option: argparse.Action | None = None
    """An option that takes a further value."""
    option_values: int = 0
    positionals: int = 0
    used: set[str] = field(default_factory=set)
    runs: Path = Path("runs")
    sets: list[str] = field(default_factory=list)


def split(line: str) -> tuple[list[str], str]:
    """The words after `submit.py`, and the word at the cursor, which is the end of the line."""
    words: list[str] = []
    for closing in ("", "'", '"'):  # a quotation may be open
        try:
            words = shlex.split(line + closing)
            break
        except ValueError:
            continue
    current = words.pop() if words and not line[-1:].isspace() else ""
    programs = [index for index, word in enumerate(words) if Path(word).name == PROGRAM]
    return words[programs[-1] + 1 if programs else 1 :], current


def candidates(words: Sequence[str], current: str) -> Candidates:
    """The candidates for the word `current`, which follows `words` on a command line of `submit.py`."""
    if "--" in words:
        return Candidates(kind="files")
    typed = _typed(words)
    if typed.option is not None and not (current.startswith("-") and typed.option_values):
        return _beginning_with(current, _values(typed.option, typed, current))
    name, equals, value = current.partition("=")
    if current.startswith("--") and equals and (option := typed.parser._option_string_actions.get(name)):
        found = _beginning_with(value, _values(option, typed, value))
        return Candidates(tuple(f"{name}={word}" for word in found.words), found.kind)
    if current.startswith("-"):
        return _beginning_with(current, Candidates(tuple(_options(typed))))
    found = Candidates()
    if (positional := _positional(typed)) is not None:
        found = _values(positional, typed, current)
    if not current and found == Candidates():
        found = Candidates(tuple(_options(typed)))
    return _beginning_with(current, found)


def _beginning_with(start: str, found: Candidates) -> Candidates:
    return Candidates(tuple(word for word in found.words if word.startswith(start)), found.kind)


def _typed(words: Sequence[str]) -> _Typed:
    typed = _Typed(build_parser())
    for word in words:
        nested = _positional(typed)
        if isinstance(nested, argparse._SubParsersAction) and word in nested.choices:
            typed.parser = nested.choices[word]
            typed.positionals, typed.option = 0, None
        elif word.startswith("-"):
            name, equals, value = word.partition("=")
            option = typed.parser._option_string_actions.get(name)
            typed.used.add(name)
            typed.option, typed.option_values = (None if equals else _with_value(option)), 0
            if equals and name == "--runs":
                typed.runs = Path(value)
        elif typed.option is not None:
            typed.option_values += 1
            if typed.option.dest == "runs":
                typed.runs = Path(word).expanduser()
            if typed.option.dest == "set":
                typed.sets.append(word)
            if typed.option.nargs in (None, "?"):
                typed.option = None
        else:
            typed.positionals += 1
    return typed


def _with_value(option: argparse.Action | None) -> argparse.Action | None:
    return None if option is None or option.nargs == 0 else option


def _options(typed: _Typed) -> list[str]:
    return [
        name
        for action in typed.parser._actions
        if action.help != argparse.SUPPRESS
        for name in action.option_strings
        if name.startswith("--") and (isinstance(action, argparse._ExtendAction) or name not in typed.used)
    ]


def _positional(typed: _Typed) -> argparse.Action | None:
    """The positional argument that takes the next word."""
    actions = [action for action in typed.parser._actions if not action.option_strings]
    if typed.positionals < len(actions):
        return actions[typed.positionals]
    return actions[-1] if actions and actions[-1].nargs in ("*", "+") else None


def _values(action: argparse.Action, typed: _Typed, current: str) -> Candidates:
    """All values of an argument, as far as they can be listed."""
    if action.choices is not None:
        return Candidates(tuple(map(str, action.choices)))
    if action.dest == "set":
        return Candidates(tuple(_settings(typed, current)))
    metavar = str(action.metavar)
    if metavar == "SWEEP":
        return Candidates(tuple(subfolders(typed.runs)))
    if metavar in ("RUN", "SWEEP|RUN"):
        return Candidates(tuple(_runs(typed, current, sweeps=action.nargs is not None)))
    if metavar == "NAME|FILE" and "/" not in current:
        from jobs.schedulers.profile_files import profile_files

        return Candidates(tuple(profile_files()))
    if metavar.startswith("STATE"):
        from jobs.cli.selection import STATES

        return Candidates(tuple(_after_last_comma(current) + state for state in STATES))
    if "FILE" in metavar or "COMMAND" in metavar:
        return Candidates(kind="files")
    return Candidates(kind="folders") if metavar == "DIR" else Candidates()


def _runs(typed: _Typed, current: str, *, sweeps: bool) -> Iterable[str]:
    """`sweep/` first, and the runs of a sweep after that, so that only its folder is read."""
    sweep, slash, _ = current.rpartition("/")
    if slash:
        return (f"{sweep}/{run}" for run in subfolders(typed.runs / sweep) if not _REPORT.fullmatch(run))
    names = subfolders(typed.runs)
    return [*(names if sweeps else ()), *(f"{name}/" for name in names)]


def _settings(typed: _Typed, current: str) -> Iterable[str]:
    """`key=` for each config key; after the `=` the values of a key that has few."""
    from disttrain.config.builder_options import BUILT_SECTIONS, builder_of, builtin_kinds
    from disttrain.config.config_tree import config_fields

    key, equals, values = current.partition("=")
    if not equals:
        keys = [name for name, _ in config_fields()]
        given = dict(word.split("=", 1) for word in typed.sets if "=" in word)
        for section, package in BUILT_SECTIONS.items():
            kind = given.get(f"{section}.kind")
            for name in [kind] if kind in builtin_kinds(package) else builtin_kinds(package):
                builder = builder_of(package, name)
                options = [*builder.options, *(["size"] if builder.sizes else [])] if builder else []
                keys += [f"{section}.{option}" for option in options]
        return [f"{name}=" for name in dict.fromkeys(keys)]
    section, _, last = key.partition(".")
    if last == "kind" and section in BUILT_SECTIONS:
        known: Sequence[Any] = builtin_kinds(BUILT_SECTIONS[section])
    else:
        known = _few_values(next((info.annotation for name, info in config_fields() if name == key), None))
    return (f"{key}={_after_last_comma(values)}{value}" for value in known)


def _few_values(annotation: Any) -> list[str]:
    """The values of a `Literal` or a bool, also within a union; none for other types."""
    if annotation is bool:
        return ["true", "false"]
    values = get_args(annotation)
    if re.match(r"typing\.Literal\[", str(annotation)):
        return [str(value) for value in values]
    return [each for value in values if value is not annotation for each in _few_values(value)]


def _after_last_comma(text: str) -> str:
    """The part of a list with commas that is typed already."""
    return text[: text.rfind(",") + 1]
