"""The reference of the command line, from its parsers."""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.generate.files import REFERENCE, by_owners, page, table
from jobs.cli.arguments import build_parser, parsers

_INTRODUCTION = """
`disttrain VERB --help` explains each argument of a verb, with examples. Results go to stdout; warnings,
errors and progress go to stderr.

exit code | meaning
---|---
0 | done
1 | a run was blocked, deferred, refused, or with `--wait` is not done; a missed target; an error
2 | bad input, or no write access: one line on stderr, and nothing is written
3 | `report --check`: the runs do not show whether a target is met
130 | Ctrl-C; submitted jobs continue
"""


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    known = dict(parsers(build_parser()))
    groups = by_owners({verb: _arguments(parser) for verb, parser in known.items()})
    is_shared = {verbs: len(verbs) > (3 if "sweep" in verbs else 4) for verbs in groups}
    rows = []
    shared: dict[str, list[list[str]]] = {}
    for verb, parser in known.items():
        own = [
            name for verbs in groups if verb in verbs and not is_shared[verbs] for name, _ in groups[verbs]
        ]
        usage = " ".join([verb, *(f"[{name}]" if name.startswith("-") else name for name in own)])
        rows.append([f"`{usage}`", parser.description or ""])
    for verbs, arguments in groups.items():
        if is_shared[verbs]:
            names = ", ".join(verbs) if len(verbs) < len(known) / 2 else "most verbs"
            shared.setdefault(names, []).extend([f"`{name}`", effect] for name, effect in arguments)
    parts = ["## Verbs", table(["verb", "effect"], rows)]
    for names, effects in shared.items():
        parts += [f"## Arguments of {names}", table(["argument", "effect"], effects)]
    return {REFERENCE / "command-line.md": page("Command line", _INTRODUCTION, *parts)}


def _arguments(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Each argument as it is written, and its effect."""
    hidden = (argparse.SUPPRESS, "show this help message and exit")
    shown = (action for action in parser._actions if action.help not in hidden)
    return [(_name(action), (action.help or "").replace("%%", "%")) for action in shown]


def _name(action: argparse.Action) -> str:
    name = "|".join(action.option_strings)
    if action.nargs == 0:
        return name
    value = str(action.metavar or "|".join(map(str, action.choices or [action.dest.upper()])))
    value = {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(str(action.nargs), value)
    return f"{name} {value}".strip()
