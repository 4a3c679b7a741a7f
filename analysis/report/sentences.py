"""Sentences of the report: the macros of `templates/sentences.j2`, one a subject, around numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis import units
from analysis.draw.style import PHASE_NAMES
from analysis.stats.estimates import Estimate


def say(macro: str, /, *values: Any, **named: Any) -> str:
    """The sentence of a macro of `sentences.j2`, without line breaks; empty where it has nothing to say."""
    return " ".join(getattr(_MACROS, macro)(*values, **named).split())


def _with_bounds(estimate: Estimate, unit: units.Unit) -> str:
    """`8.17 ms [6.91, 9.42]`; without the reason where there is no interval."""
    value = units.cell(estimate, unit)
    return value.text if estimate.low is None else f"{value.text} {value.interval}"


def _of_all(count: int, total: int, noun: str) -> str:
    """`all runs`, `3 of 9 runs`."""
    return f"all {noun}s" if count == total else f"{count} of {units.plural(total, noun)}"


def environment(*, autoescape: bool, **filters: Any) -> Environment:
    """Of the templates, with filters of `analysis.units` and others."""
    made = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= vars(units) | filters
    return made


_SENTENCES = environment(
    autoescape=False,
    bytes=units.binary_bytes,
    x=partial(units.times, digits=1),
    cell=lambda value, unit: units.cell(value, unit).in_text,
    bounds=lambda estimate, unit, digits: units.cell(estimate, unit, digits=digits).interval,
    with_bounds=_with_bounds,
    of_all=_of_all,
    upper_first=lambda text: text[:1].upper() + text[1:],
)
_SENTENCES.globals["PHASE_NAMES"] = PHASE_NAMES
_MACROS = _SENTENCES.get_template("sentences.j2").module
