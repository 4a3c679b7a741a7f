"""Numbers on the command line. Imports argparse alone, as `jobs.cli.arguments`."""

from __future__ import annotations

import argparse
import math

_YEAR_H = 8760


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def hours(text: str) -> float:
    """A number of hours above 0, at most a year."""
    value = above_zero(text)
    if value > _YEAR_H:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_YEAR_H} hours (a year)")
    return value


def number_of_runs(text: str) -> int:
    """1, 2, ..."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of runs: 1, 2, ...")
    return int(text)
