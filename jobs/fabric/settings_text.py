"""Read settings of variables from a text: shell script, `nccl.conf`, `KEY=VALUE` lines, `env.json`, YAML.

Pure. Of a shell script, assignments and the options that set variables for a job are read; nothing is run.
Modules (Tcl, Lua), Dockerfiles and assignments to `os.environ` in Python are read in the same way.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from disttrain.errors import ConfigError
from jobs.fabric.findings import Setting
from jobs.fabric.job_commands import job_command, job_commands
from jobs.fabric.nccl_files import variable_lines
from jobs.fabric.settings_yaml import yaml_settings

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_SPACED = re.compile(rf"\s*({_NAME}\s+)=\s*(?![\w.:]+\()([^#\s][^#]*?)\s*(?:#.*)?")
"""A line with blanks before the equals sign, which neither a shell nor NCCL reads as an assignment.

A call as the value shows a line of Lua or Python, which sets no environment variable.
"""
_DECLARATIONS = frozenset({"export", "declare", "typeset", "readonly", "env"})
"""Words before assignments, which may have options."""
_QUOTED_PAIR = re.compile(
    rf"""(?:\b(?:set|push)env\(|\benviron(?:\[|\.setdefault\())\s*(['"])({_NAME})\1"""
    r"""\s*(?:,|\]\s*=)\s*(['"])(.*?)\3(?=(\s*(?:$|[);#'"]|--))?)"""
)
"""A variable that an Lmod module sets, or a program in Python."""
_SEPARATORS = frozenset(";&|")
_BEFORE_COMMANDS = frozenset({"then", "do", "else", "{", "if", "while", "!", "time", "sudo", "exec", "nohup"})
_COMMENT = re.compile(r"""(?:[^'"\\#]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?<=\S)\#)*(?:^|(?<=\s))\#""")
"""A shell line up to its comment."""
_QUOTES = "'\""
_SBATCH = re.compile(r"#SBATCH\s+(.*)")
_VARIABLE_OPTIONS = frozenset({"-x", "-e", "--env"})
"""Options of mpirun, docker and apptainer that set a variable."""
_OPTIONS_WITH_TWO_VALUES = frozenset({"-env", "-genv"})
"""The same of MPICH's mpiexec, which separates name and value by a blank or by =."""
_NCCL_FILE = "nccl.conf"
"""End of the names of the files that NCCL reads."""
_COMMA_SEPARATED = ("apptainer", "singularity")
"""Programs whose `--env` may set several variables."""
_QUOTED_PARTS = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""")
"""Parts of `--export` of such a command, which commas separate except within quotes."""
_LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec", "torchrun"})
_NAMING = frozenset({"echo", "printf", "module", "ml", "which", "type", "hash", "command"})
"""Commands that name a program without starting it."""


class _Unset(NamedTuple):
    """The removal of a variable."""

    name: str


class _Event(Enum):
    """Parts of a script after or within which the removal of a variable does not reach the job."""

    LAUNCH = "launch"
    SUBSHELL = "subshell"
    END_OF_SUBSHELL = "end of subshell"


_Found = Setting | _Unset | _Event


@dataclass(frozen=True)
class ReadSettings:
    """Settings of a text; of several settings of a name the last one holds."""

    settings: Mapping[str, Setting]
    srun_network: str | None
    """Value of `--network` in the text; None if it is not a batch script."""


def read_settings(text: str, name: str) -> ReadSettings:
    """The settings in a text. Raises `ConfigError` for JSON of another form, and if a text sets no variable.

    `name` is that of the file, for messages and origins.
    """
    of_yaml = None
    found: list[_Found]
    if name.endswith(_NCCL_FILE):
        lines = list(variable_lines(text))[::-1]  # of a name given twice, NCCL takes the first value
        found = [Setting(variable, value, f"{name}:{number}") for number, variable, value in lines]
    elif text.lstrip().startswith("{"):
        found = list(_of_json(text, name))
    elif (of_yaml := yaml_settings(text, name)) is not None:
        shell = (setting for each in of_yaml.shell_lines for setting in _of_line(*each))
        found = [*shell, *of_yaml.settings]  # the variables of a profile replace those of its shell lines
    else:
        found = [setting for number, line in _lines(text) for setting in _of_line(line, f"{name}:{number}")]
    settings = _of_job(found)
    if of_yaml is not None:
        return ReadSettings(settings, of_yaml.srun_network)
    sets_none = all(isinstance(each, _Event) for each in found)
    if sets_none and any(line.strip() and line.strip()[0] != "#" for line in text.splitlines()):
        raise ConfigError(
            "no variable is set; allowed are KEY=VALUE lines, export lines, an sbatch script, nccl.conf, a "
            "module, a Dockerfile, env.json, and the YAML of a profile or a config",
            at=name,
        )
    return ReadSettings(settings, _srun_network(text))


def _of_job(found: Iterable[_Found]) -> dict[str, Setting]:
    """Settings that hold when the job starts: the last one of each name that is not removed before."""
    settings: dict[str, Setting] = {}
    is_launched, depth = False, 0
    for each in found:
        if isinstance(each, Setting):
            settings[each.name] = each
        elif isinstance(each, _Unset):
            if not is_launched and not depth:
                settings.pop(each.name, None)
        elif each is _Event.LAUNCH:
            is_launched = True
        else:
            depth = max(0, depth + (1 if each is _Event.SUBSHELL else -1))
    return settings


def _srun_network(text: str) -> str | None:
    """The first `--network` of `#SBATCH` lines and srun, empty without it; None if the text has neither."""
    options = []
    for _, line in _lines(text):
        directive = _directive(line)
        commands = [each for words, *_ in _simple_commands(_words(line)) for each in job_commands(words)]
        options += [directive] if directive is not None else []
        options += [each.options for each in commands if each.name == "srun"]
    return next((each["network"] for each in options if "network" in each), "") if options else None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines: those that end in a backslash are joined with the next, and keep their number.

    A backslash at the end of a comment joins nothing.
    """
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        if line.endswith("\\") and not _COMMENT.match(held + line):
            held += line[:-1] + " "
            continue
        yield start, held + line
        held, start = "", 0
    if held:
        yield start, held


def _of_line(line: str, origin: str) -> Iterator[_Found]:
    directive = _directive(line)
    if directive is not None:
        yield from _exported(directive, origin)
        return
    pairs = [] if line.lstrip().startswith(("#", "--")) else list(_QUOTED_PAIR.finditer(line))
    for pair in pairs:
        yield Setting(pair[2], pair[4], origin, is_literal=pair[5] is not None)
    spaced = _SPACED.fullmatch(line)
    if spaced:
        yield from [] if pairs else [Setting(spaced[1], spaced[2], origin)]
        return
    for command in _simple_commands(_words(line)):
        yield from [_Event.SUBSHELL] * command.opened
        yield from _of_command(command.words, origin)
        yield from [_Event.END_OF_SUBSHELL] * command.closed


def _directive(line: str) -> dict[str, str] | None:
    """Options of a `#SBATCH` line; None for another line."""
    found = _SBATCH.match(line.strip())
    return job_command("sbatch", _words(found[1])).options if found else None


class _Command(NamedTuple):
    """A command, and the numbers of subshells that begin before and end after it."""

    words: list[str]
    opened: int
    closed: int


def _simple_commands(words: list[str]) -> Iterator[_Command]:
    """The words of each command of a line: commands begin after `;`, `&&`, `|`, and words such as `then`, and
    within braces and parentheses."""
    command: list[str] = []
    for word in words:
        if word and _SEPARATORS.issuperset(word):
            yield _without_parentheses(command)
            command = []
        elif word == "{" or (not command and word in _BEFORE_COMMANDS):
            command = []  # with braces, also the name of a function
        else:
            command.append(word)
    yield _without_parentheses(command)


def _without_parentheses(command: list[str]) -> _Command:
    """A command in a subshell; the closing parenthesis may be that of a later command."""
    words, opened, closed = list(command), 0, 0
    while words and words[0].startswith("(") and not words[0].startswith("(("):
        words = [words[0][1:], *words[1:]] if words[0] != "(" else words[1:]
        opened += 1
    while words and words[-1].endswith(")") and words[-1].count(")") > words[-1].count("("):
        words = [*words[:-1], words[-1][:-1]] if words[-1] != ")" else words[:-1]
        closed += 1
    return _Command(words, opened, closed)


def _of_command(words: list[str], origin: str) -> Iterator[_Found]:
    first, rest = (words[0], words[1:]) if words else ("", [])
    if first in ("unset", "unsetenv") or words[:2] == ["export", "-n"]:
        yield from (_Unset(word) for word in rest if not word.startswith("-"))
        return
    if first in ("setenv", "ENV") and len(rest) > 1 and "=" not in rest[0]:  # csh, Tcl, Dockerfile
        yield from _assignments([f"{rest[0]}={rest[1]}"], origin)
        return
    leading = _leading_assignments(rest if first == "ENV" else words)
    yield from _assignments(leading, origin)
    following = words[len(leading) :]
    yield from _assignments(_passed_variables(following), origin)
    for command in job_commands(following):
        yield from _exported(command.options, origin)
    if _starts_job(following):
        yield _Event.LAUNCH
    if "env" in following:
        yield from _assignments(_leading_assignments(following[following.index("env") :]), origin)


def _starts_job(words: list[str]) -> bool:
    """Whether a command without its assignments starts the program of the job."""
    return bool(words) and words[0] not in _NAMING and any(w.rpartition("/")[2] in _LAUNCHERS for w in words)


def _leading_assignments(words: list[str]) -> list[str]:
    """The words of a command up to its program: assignments, `export` and the like, and their options."""
    for index, word in enumerate(words):
        is_option = words[0] in _DECLARATIONS and (word.startswith("-") or words[index - 1] == "-u")
        if not (word in _DECLARATIONS or _ASSIGNMENT.fullmatch(word) or is_option):
            return words[:index]
    return words


def _passed_variables(words: list[str]) -> Iterator[str]:
    """Assignments that mpirun, docker or apptainer pass to their program."""
    is_list = False
    for word, following, third in zip(words, [*words[1:], ""], [*words[2:], "", ""], strict=False):
        is_list = is_list or any(name in word.casefold() for name in _COMMA_SEPARATED)
        if word in _OPTIONS_WITH_TWO_VALUES:
            yield following if "=" in following else f"{following}={third}"
        given = following if word in _VARIABLE_OPTIONS else word.removeprefix("--env=")
        if given != word:
            yield from _apptainer_variables(given) if is_list and word.startswith("--") else [given]


def _apptainer_variables(value: str) -> list[str]:
    """Assignments in a value of apptainer's `--env`.

    Apptainer reads it as a `StringToString` flag of Go's pflag: with one equals sign, the value is one
    variable, commas included. With more, it is a line of CSV, in which double quotes around a whole
    assignment keep its commas.
    """
    if value.count("=") < 2:
        return [value.strip('"')]
    return next(csv.reader([value]), [])


def _exported(options: Mapping[str, str], origin: str) -> Iterator[Setting]:
    """Assignments in `--export` of srun, sbatch or salloc."""
    for part in _QUOTED_PARTS.findall(options.get("export", "")):
        name, equals, text = part.partition("=")
        yield from _assignments([f"{name}={text.strip(_QUOTES)}"] if equals else [], origin)


def _words(line: str) -> list[str]:
    """Words of a shell line without its comment; an unbalanced quote ends the line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words: list[str] = []
    with contextlib.suppress(ValueError):
        words.extend(lexer)
    return words


def _assignments(words: Iterable[str], origin: str) -> Iterator[Setting]:
    for word in words:
        found = _ASSIGNMENT.fullmatch(word)
        if found:
            value = found[2]
            yield Setting(found[1], value, origin, is_literal="$" not in value and "`" not in value)


def _of_json(text: str, name: str) -> Iterator[Setting]:
    """Settings of `env.json`, or of an object from names to values."""
    try:
        record: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error}", at=name) from None
    variables = record.get("variables", record)
    inherited = record.get("inherited", {}) if "variables" in record else {}
    if not isinstance(variables, dict) or not isinstance(inherited, dict):
        raise ConfigError("`variables` is not a mapping from names to values", at=name)
    for variable, entry in {**inherited, **variables}.items():
        value = entry.get("value") if isinstance(entry, dict) else entry
        if not isinstance(value, str | int | float):
            raise ConfigError(f"{variable} has no value; allowed: text, or {{value: text}}", at=name)
        yield Setting(str(variable), str(value), name)
