"""Sentences of the report: the macros of `templates/sentences.j2`, one a subject, around numbers."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis.report.cells import cell
from analysis.stats.estimates import Estimate
from analysis.units import (
    binary_bytes,
    bounds,
    interval,
    listed,
    money,
    number,
    percent,
    plural,
    rate,
    seconds,
    span,
    time_scale,
    times,
)


def say(macro: str, /, *values: Any, **named: Any) -> str:
    """The sentence of a macro of `sentences.j2`, without line breaks; empty where it has nothing to say."""
    return " ".join(getattr(_MACROS, macro)(*values, **named).split())


def _x(value: float) -> str:
    return times(value, 1)


def _x_bounds(estimate: Estimate) -> str:
    return bounds(_x(estimate.low or 0.0), _x(estimate.high or 0.0))


def _seconds_bounds(estimate: Estimate) -> str:
    """`8.17 ms [6.91, 9.42]`."""
    if estimate.low is None or estimate.high is None:
        return seconds(estimate.value)
    factor, unit = time_scale(abs(estimate.value))
    value, low, high = (number(each * factor) for each in (estimate.value, estimate.low, estimate.high))
    return f"{value} {unit} {bounds(low, high)}"


def _of_all(count: int, total: int, noun: str) -> str:
    """`all runs`, `3 of 9 runs`."""
    return f"all {noun}s" if count == total else f"{count} of {plural(total, noun)}"


def _macros() -> object:
    environment = Environment(
        loader=PackageLoader("analysis.report"), undefined=StrictUndefined, trim_blocks=True, autoescape=False
    )
    environment.filters |= {
        "bytes": binary_bytes,
        "times": times,
        "cell": lambda value, unit: cell(value, unit).in_text,
        "listed": listed,
        "number": number,
        "plural": plural,
        "percent": percent,
        "rate": rate,
        "money": money,
        "span": span,
        "seconds": seconds,
        "seconds_bounds": _seconds_bounds,
        "nodes": lambda counts: (
            f"{listed([str(each) for each in counts])} node{'' if counts == [1] else 's'}"
        ),
        "of_all": _of_all,
        "upper_first": lambda text: text[:1].upper() + text[1:],
        "x": _x,
        "x_bounds": _x_bounds,
        "percent_interval": lambda estimate: (
            percent(estimate.value)
            if estimate.low is None
            else f"{percent(estimate.value)} {interval(estimate, 100, 1)}"
        ),
        "percent_bounds": lambda estimate: f"{interval(estimate, 100, 0)} %",
    }
    return environment.get_template("sentences.j2").module


_MACROS = _macros()
