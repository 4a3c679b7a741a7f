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


def _macros() -> object:
    environment = Environment(
        loader=PackageLoader("analysis.report"), undefined=StrictUndefined, trim_blocks=True, autoescape=False
    )
    environment.filters |= {
        "bytes": units.binary_bytes,
        "text": units.text,
        "times": units.times,
        "x": partial(units.times, digits=1),
        "cell": lambda value, unit: units.cell(value, unit).in_text,
        "bounds": lambda estimate, unit, digits: units.cell(estimate, unit, digits=digits).interval,
        "with_bounds": _with_bounds,
        "listed": units.listed,
        "number": units.number,
        "plural": units.plural,
        "percent": units.percent,
        "money": units.money,
        "span": units.span,
        "seconds": units.seconds,
        "short_count": units.short_count,
        "nodes": lambda counts: f"{units.listed(list(map(str, counts)))} node{'' if counts == [1] else 's'}",
        "of_all": _of_all,
        "upper_first": lambda text: text[:1].upper() + text[1:],
    }
    environment.globals["PHASE_NAMES"] = PHASE_NAMES
    return environment.get_template("sentences.j2").module


_MACROS = _macros()
