"""Claim of a curve: what its runs settle about the speed-up of the largest size.

The first row of `_CASES` that holds decides. Each case has its sentence in `report/templates/sentences.j2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analysis.efficiency import Curve, Point
from analysis.read.differences import run_config
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import listed, plural

WIDE = 1.5
"""Ratio of the bounds of an interval above which nothing is stated."""
SPEED_UP_MARGIN = 1.05
"""A speed-up without an interval over repeats is implausible above the number of devices times this."""
LOSS_MARGIN = 0.05
LOSS_SPREADS = 3
"""Final losses differ if their means are apart by the margin and by so many standard deviations."""
ALIKE = {
    "threads_per_rank": "compute threads of a rank (OMP_NUM_THREADS)",
    "device": "device",
    "torch": "version of torch",
    "warmup_steps": "warm-up steps",
    "code_hash": "code",
}
"""Columns that are equal in runs whose speeds are compared, and their names in a sentence."""


@dataclass(frozen=True)
class Claim:
    """What may be said of one curve."""

    case: str
    curve: Curve
    base: Point | None = None
    point: Point | None = None
    """The size that is compared with the base."""
    reason: str = ""
    """Of a case without a number."""

    @property
    def is_settled(self) -> bool:
        return self.case == "settled"


def claim(study: Study, curve: Curve) -> Claim:
    """The first case that holds for the largest size of a curve."""
    base, point = curve.base, compared_point(curve)
    if curve.other_program:
        return Claim("other program", curve, reason=curve.other_program)
    if base is None:
        return Claim("no base", curve)
    if point is None:
        return Claim("one size", curve, base)
    pair = _Pair(study, curve, base, point)
    for case, holds in _CASES:
        if reason := holds(pair):
            return Claim(case, curve, base, point, reason)
    return Claim("settled", curve, base, point)


def compared_point(curve: Curve) -> Point | None:
    """The largest point, or the smallest if the largest is the base; None without both."""
    others = [point for point in curve.points if curve.base is not None and point.size != curve.base_size]
    largest = curve.points[-1]
    return largest if largest in others else others[0] if others else None


@dataclass(frozen=True)
class _Pair:
    study: Study
    curve: Curve
    base: Point
    point: Point

    @cached_property
    def speedup(self) -> Estimate:
        assert self.point.speedup is not None
        return self.point.speedup

    @cached_property
    def bounds(self) -> tuple[float, float] | None:
        """Interval of the speed-up over repeats."""
        low, high = self.speedup.low, self.speedup.high
        return None if low is None or high is None or self.speedup.basis != "repeats" else (low, high)

    @property
    def sizes(self) -> tuple[str, str]:
        return plural(self.base.size, self.curve.unit), plural(self.point.size, self.curve.unit)

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Runs of the base and of the size compared with it."""
        return self.study.runs_of(self.curve, self.base), self.study.runs_of(self.curve, self.point)


def _unlike_runs(pair: _Pair) -> str:
    differing = []
    for column, noun in ALIKE.items():
        base, point = (", ".join(_values(rows, column)) for rows in pair.rows())
        if base and point and base != point:
            differing.append(f"{noun}: {base} and {point}")
    if differing:
        return f"runs at {pair.sizes[0]} and {pair.sizes[1]} differ in {listed(differing)}"
    paths = {str(path) for each in pair.study.overlaps for path in each.runs}
    shared = [any(row["path"] in paths for row in rows) for rows in pair.rows()]
    if shared[0] == shared[1]:
        return ""
    some, others = pair.sizes if shared[0] else reversed(pair.sizes)
    return f"runs at {some} shared their machine with other runs, those at {others} did not"


def _values(rows: Sequence[dict[str, Any]], column: str) -> list[str]:
    return sorted({str(row[column]) for row in rows if row[column] == row[column] and row[column]})


def _other_loss(pair: _Pair) -> str:
    """Final losses of one global batch, seed and number of steps, which an exact training reproduces."""
    base, point = pair.rows()
    means = losses_apart(base, point)
    if means is None or not all(map(_is_exact, (*base, *point))):
        return ""
    return f"losses at {pair.sizes[0]} and {pair.sizes[1]} differ ({means[0]:.3g}; {means[1]:.3g})"


def losses_apart(
    base: Sequence[Mapping[str, Any]], point: Sequence[Mapping[str, Any]]
) -> tuple[float, float] | None:
    """Means of the final losses of two groups of runs if they differ at one global batch and number of
    steps."""
    if len({(row["global_batch_size"], row["steps"]) for row in (*base, *point)}) > 1:
        return None
    losses = [np.array([_final_loss(row) for row in rows], dtype=float) for rows in (base, point)]
    means = float(losses[0].mean()), float(losses[1].mean())
    spread = max(float(each.std(ddof=1)) if each.size > 1 else 0.0 for each in losses)
    apart = abs(means[0] - means[1]) > max(LOSS_MARGIN * min(map(abs, means)), LOSS_SPREADS * spread)
    return means if apart else None


def _is_exact(row: dict[str, Any]) -> bool:
    """Whether the number of ranks changes the losses by rounding alone."""
    config = run_config(row)
    schemes = config.get("parallel.gradient_communication.scheme")
    return config.get("model.kind") in ("gpt", "mlp") and schemes in (None, "none")


def _final_loss(row: Mapping[str, Any]) -> float:
    return float(row["valid_loss"]) if row["valid_loss"] == row["valid_loss"] else float("nan")


def _implausible(pair: _Pair) -> str:
    low = pair.bounds[0] if pair.bounds else pair.speedup.value / SPEED_UP_MARGIN
    return "beyond" if low > pair.point.devices / pair.base.devices else ""


def _not_stationary(pair: _Pair) -> str:
    moving = [
        plural(point.size, pair.curve.unit)
        for point in (pair.base, pair.point)
        if point.samples_per_s.basis == "not stationary"
    ]
    return f"the step times at {listed(moving)} are not stationary" if moving else ""


def _one_repeat(pair: _Pair) -> str:
    return "one run" if pair.bounds is None else ""


def _unsettled(pair: _Pair) -> str:
    assert pair.bounds is not None
    return "wide" if pair.bounds[1] > WIDE * pair.bounds[0] else ""


def _no_gain(pair: _Pair) -> str:
    assert pair.bounds is not None
    return "holds 1" if pair.bounds[0] <= 1 <= pair.bounds[1] else ""


_CASES: tuple[tuple[str, Callable[[_Pair], str]], ...] = (
    ("unlike runs", _unlike_runs),
    ("other loss", _other_loss),
    ("implausible", _implausible),
    ("not stationary", _not_stationary),
    ("one repeat", _one_repeat),
    ("unsettled", _unsettled),
    ("no gain", _no_gain),
)
"""Cases with the test that gives a reason where they hold; the last one, `settled`, needs none."""
