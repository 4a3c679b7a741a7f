"""The values that exclude each other, from the rules of `disttrain.config.refusals`."""

from __future__ import annotations

from pathlib import Path

from disttrain.config.refusals import OF_THE_BATCH, REFUSALS
from disttrain.config.rules import Rule
from docs.generate.files import REFERENCE, page, table

_INTRODUCTION = """
A config with the values of one row is refused before anything is submitted. A key without a value stands for
any value but the default, or for the values that the reason names. The message has the reason of the row, and
in place of the dots values that work.
"""


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    rules = [rule for rule in (*REFUSALS, *OF_THE_BATCH) if rule.verb == Rule.verb and " " in rule.why]
    rows = table(["value", "with", "reason, and what works"], [rule.documented() for rule in rules])
    return {REFERENCE / "refusals.md": page("Refused combinations", _INTRODUCTION, rows)}
