"""The reference of communication variables, from `jobs/fabric/variables.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from docs.generate.files import REFERENCE, page, table
from jobs.fabric.registry import READ_BY_OTHERS, Combination, Variable, registry

_INTRODUCTION = """
[`fabric lint`](../communication.md#lint) and each run compare environment variables with
`jobs/fabric/variables.json`: names, allowed values, versions of NCCL up to {nccl} and torch up to {torch},
and the findings below. The file also has former names and variables that are not documented. Names with these
prefixes are of other libraries: {others}.
"""
_KINDS = {"system": "They may stay in scripts and site files.", "debug": "They are a finding in a script."}


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    data = registry()
    given = [[f"`{each.name}={each.value}`", " and ".join(each.on), each.reason] for each in data.prescribed]
    found = [[_code(each.names), _finding(each), each.message] for each in data.combinations]
    kinds = [_list(kind, [each for each in data.variables.values() if each.kind == kind]) for kind in _KINDS]
    text = page(
        "Communication variables",
        _INTRODUCTION.format(**data.read_from, others=_code(READ_BY_OTHERS)),
        "## Values that runs of several nodes get",
        table(["variable", "network", "reason"], given),
        "## Findings",
        table(["variable", "finding", "reason, and what works"], found),
        *kinds,
    )
    return {REFERENCE / "variables.md": text}


def _finding(each: Combination) -> str:
    return each.kind + (f" ({' and '.join(each.on)})" if each.on else "")


def _list(kind: str, variables: Sequence[Variable]) -> str:
    """The names by library."""
    names: dict[str, list[str]] = {}
    for each in variables:
        names.setdefault(each.library, []).append(each.name)
    lists = (f"- {library}: {_code(of_library)}" for library, of_library in names.items())
    return "\n".join([f"## Variables of kind {kind}", "", _KINDS[kind], "", *lists])


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
