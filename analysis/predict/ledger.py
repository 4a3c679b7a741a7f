"""Past predictions and how far they were off: the source of a prediction's model error.

A prediction is a line of `runs/.predictions.jsonl`, written before a run of that size exists. A later run of
the size scores it. The published curves beside this module score the laws: each with at least three sizes,
its largest left out. The score of a prediction over a ratio r of sizes is

    |log(measured / predicted)| / (0.3 + log2 r)

A curve has one score, because its predictions depend on each other: that over about the same ratio, or else
the largest. Split conformal prediction over curves (Vovk et al. 2005) gives the half-width: with n curves,
the ceil((n + 1) c)-th smallest score times (0.3 + log2 r) covers a share c of new curves, if these are
exchangeable with the known ones.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from analysis.predict.laws import ensemble
from analysis.read.lines import UNREADABLE
from analysis.results.curves import Curve

Method = Literal["replay", "laws"]
FILE = ".predictions.jsonl"
LEAST_CURVES = 9
"""Scored curves of a method from which their errors give its intervals: the fewest that can cover 90 %."""
NEAR = 1.5
_BROKEN = {"foundry-1b-seq2048-a100_40gb-bf16-FULL_SHARD-False-mb10-acc1"}
"""Published curves that are not used: throughput per device rises by a fifth with the size."""


@dataclass(frozen=True)
class Entry:
    """One prediction."""

    made: str
    """Time, ISO 8601 with zone."""
    inputs: str
    """Hash of the measurements that it is from."""
    curve: str
    """`curve_key`."""
    nodes: int
    per_node: int
    largest: int
    """Nodes of the largest measured size."""
    method: Method
    step_s: float
    half_50: float
    """Half-width of the 50 % interval of log(step time)."""
    half_90: float


@dataclass(frozen=True)
class Score:
    """A prediction beside what was measured."""

    curve: str
    method: Method
    ratio: float
    """Predicted size / largest measured size."""
    error: float
    """log(measured / predicted)."""
    half_90: float | None = None
    """Of the prediction; None for a published curve, which had no interval."""

    @property
    def inside(self) -> bool:
        """Whether the measured step lay in the 90 % interval."""
        return self.half_90 is not None and abs(self.error) <= self.half_90


def read(path: Path) -> list[Entry]:
    """The predictions of a ledger; lines that are none are left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        try:
            entries.append(msgspec.json.decode(line, type=Entry))
        except UNREADABLE:
            continue
    return entries


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Append predictions that the ledger does not have from the same measurements."""
    known = {(each.inputs, each.nodes, each.per_node) for each in read(path)}
    new = [each for each in entries if (each.inputs, each.nodes, each.per_node) not in known]
    with path.open("ab") as file:  # one write, so that lines of two commands do not mix
        file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in new))


def scores(entries: Sequence[Entry], curves: Sequence[Curve]) -> list[Score]:
    """Of the predictions whose size was measured later."""
    by_name = {curve_key(curve): curve for curve in curves}
    found = []
    for entry in entries:
        curve = by_name.get(entry.curve)
        point = curve and curve.at({"nodes": entry.nodes, "size": entry.nodes * entry.per_node})
        starts = (
            [span[0] for run in point.runs for each in run.attempts if (span := each.span)] if point else []
        )
        if point and starts and min(starts) > datetime.fromisoformat(entry.made).timestamp():
            error = math.log(point.step_s.value / entry.step_s)
            found.append(Score(entry.curve, entry.method, entry.nodes / entry.largest, error, entry.half_90))
    return found


def curve_key(curve: Curve) -> str:
    """The sweep and its other axes: equal for the same curve in later reports."""
    return f"{curve.sweep} {json.dumps(curve.axes, sort_keys=True, default=str)}"


@cache
def published_curves() -> dict[str, dict[int, float]]:
    """Time of a sample of each published curve by devices."""
    curves: dict[str, dict[int, float]] = {}
    with Path(__file__).with_name("published.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "throughput per device" and row["curve"] not in _BROKEN:
                curves.setdefault(row["curve"], {})[int(row["devices"])] = 1 / float(row["value"])
    return curves


@cache
def published() -> tuple[Score, ...]:
    """Of the laws on the published curves, the largest size of each left out."""
    found = []
    for name, times in published_curves().items():
        *known, target = sorted(times)
        if len(known) > 1:
            predicted = ensemble(known, [times[size] for size in known], target)
            found.append(Score(name, "laws", target / known[-1], math.log(times[target] / predicted)))
    return tuple(found)


def half_width(known: Iterable[Score], method: Method, ratio: float, confidence: float) -> float | None:
    """Half-width of log(step time) of a prediction over `ratio`; None with fewer than `LEAST_CURVES` scored
    curves of the method."""
    by_curve: dict[str, list[Score]] = {}
    for score in known:
        if score.method == method:
            by_curve.setdefault(score.curve, []).append(score)
    rank = math.ceil((len(by_curve) + 1) * confidence)
    if len(by_curve) < LEAST_CURVES or rank > len(by_curve):
        return None
    values = sorted(_scaled(of_curve, ratio) for of_curve in by_curve.values())
    return values[rank - 1] * (0.3 + math.log2(ratio))


def _scaled(of_curve: Sequence[Score], ratio: float) -> float:
    """The score of a curve: of its predictions over a ratio within a factor of `NEAR`, else of all."""
    near = [each for each in of_curve if 1 / NEAR < each.ratio / ratio < NEAR]
    return max(abs(each.error) / (0.3 + math.log2(each.ratio)) for each in near or of_curve)
