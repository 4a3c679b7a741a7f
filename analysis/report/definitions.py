"""Definitions of the report's metrics, from `templates/definitions.yaml`; columns link to them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class Definition:
    """One metric; its anchor on the page of details is `def-` and the id."""

    id: str
    name: str
    formula: str
    text: str
    """Meaning of the symbols, how it is measured, and what it leaves out."""


def _read() -> dict[str, Definition]:
    text = files("analysis.report").joinpath("templates", "definitions.yaml").read_text(encoding="utf-8")
    return {name: Definition(name, *parts) for name, parts in yaml.safe_load(text).items()}


DEFINITIONS = _read()
"""By id, in the order of the page."""


def anchor(formula_id: str) -> str:
    """Anchor of a definition on the page. Raises `KeyError` for an unknown id."""
    return f"def-{DEFINITIONS[formula_id].id}"
