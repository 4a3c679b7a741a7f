"""Step time, throughput and efficiency of sizes that were not measured, with intervals, or why not.

Two methods. `replay` needs the profiled steps of a run on several nodes and measured collectives
(`bench comm`): the step on N nodes is

    T(N) = own work + exposed communication(N) + waiting(N)

with the own work of the largest measured size, `replay.exposed_s` over collectives of `ring.RingTimes`, and
waiting by order statistics. No factor is fitted to whole steps; the difference between replayed and measured
steps is a reported check, and the interval is at least as wide. `laws` needs step times alone.

The interval of log(step time) is that of past predictions by the same method (`analysis.predict.ledger`);
until there are enough of them, of the spread between launches and a fixed model error.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import variance
from typing import NamedTuple

from scipy.special import ndtri

from analysis.predict import ledger, replay
from analysis.predict.laws import ensemble
from analysis.predict.ring import BelowMeasured, RingTimes
from analysis.read.profiled import Collective, ProfiledStep

FARTHEST = 16
"""Sizes beyond this multiple of the largest measured one are refused."""
LAUNCH_SPREAD = 0.0021
"""Standard deviation of log(throughput) between launches, where fewer than `MANY_LAUNCHES` were measured: the
upper quartile of 91 sets of MLPerf Training v4.1, each of 5 to 10 launches."""
MANY_LAUNCHES = 5
LARGEST_ERROR = 0.1
"""A replay that misses the largest measured step by more does not describe these runs."""
LEAST_EFFICIENCY = 0.8
"""The laws' errors are known from published curves above this efficiency; below it they predict nothing."""
NEXT_SIZES = (2, 4, 8)
"""Multiples of the largest measured size that are predicted where no size is named."""


class Size(NamedTuple):
    """One measured size; seconds are means over ranks, steps and launches."""

    nodes: int
    step_s: float
    wait_s: float | None
    """Waiting for peers; None without telemetry."""
    transfer_s: float | None
    """Exposed communication without the waiting."""
    launches: tuple[float, ...]
    """Samples/s of each launch."""


@dataclass(frozen=True)
class Basis:
    """The measurements of a curve from which other sizes follow."""

    key: str
    """`ledger.curve_key`."""
    sizes: tuple[Size, ...]
    """Smallest first; the largest has several nodes."""
    per_node: int
    """Devices of a node."""
    samples: float
    """Of a step and a node."""
    base_rate: float | None
    """Samples/s of a device at the base of the curve."""
    efficiency: float | None = None
    """Of the largest size."""
    step: ProfiledStep | None = None
    """Of a run on `step_nodes`."""
    step_nodes: int = 0
    is_blocking: bool = False
    """Whether no collective runs under compute."""
    ring: RingTimes | None = None
    lacks: str = ""
    """What a replay of the step lacks."""
    planned: ProfiledStep | None = None
    """A step with other buckets, which is predicted in place of the measured one."""

    @property
    def largest(self) -> Size:
        return self.sizes[-1]

    @property
    def inputs(self) -> str:
        """Hash of the measurements."""
        text = json.dumps([self.key, self.sizes, self.ring and self.ring.steps])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def spread(self) -> float:
        """Standard deviation of log(throughput) between launches, pooled over sizes."""
        repeats = [[math.log(rate) for rate in size.launches] for size in self.sizes]
        freedom = sum(len(each) - 1 for each in repeats)
        pooled = sum(variance(each) * (len(each) - 1) for each in repeats if len(each) > 1)
        measured = math.sqrt(pooled / freedom) if freedom else 0.0
        return measured if freedom >= MANY_LAUNCHES - 1 else max(measured, LAUNCH_SPREAD)


@dataclass(frozen=True)
class Refusal:
    """No prediction."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Forecast:
    """What a size would do."""

    nodes: int
    per_node: int
    method: ledger.Method
    step_s: float
    half: Mapping[int, float]
    """Half-width of the interval of log(step time) by its coverage in percent: 50 and 90."""
    samples_per_s: float
    efficiency: float | None
    """Against the base of the curve."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a replayed step: `own work`, `exposed communication`, `waiting`."""
    missing: str = ""
    """What the replay lacks, where the method is `laws`."""

    def factor(self, coverage: int = 90) -> float:
        """Upper end of the interval of the step time / step time."""
        return math.exp(self.half[coverage])

    def bounds(self, coverage: int = 90) -> tuple[float, float]:
        """Ends of the interval of the step time."""
        return self.step_s / self.factor(coverage), self.step_s * self.factor(coverage)


def forecast(basis: Basis, nodes: int, known: Sequence[ledger.Score] = ()) -> Forecast | Refusal:
    """The step on `nodes` nodes; `known` are the scores of past predictions.

    Raises:
        ValueError: `nodes` is not above the largest measured size.
    """
    largest = basis.largest
    if nodes <= largest.nodes:
        raise ValueError(f"{nodes} is not above the largest measured size, {largest.nodes} nodes")
    if nodes > FARTHEST * largest.nodes:
        reason = f"{nodes} nodes are more than {FARTHEST} times the measured {largest.nodes}"
        return Refusal(reason, f"measure {-(-nodes // FARTHEST)} nodes or more")
    ratio, parts, missing, check = nodes / largest.nodes, dict[str, float](), basis.lacks, 0.0
    if not missing:
        try:
            parts, check = replayed(basis, nodes, basis.planned), replay_error(basis)
        except BelowMeasured as error:
            missing = f"{error}; predict --calibrate measures them"
    if abs(check) > LARGEST_ERROR:
        parts = {}
        missing = f"the measured step of {largest.nodes} nodes is {check:+.0%} beside the replayed one"
    if missing and basis.planned:
        return Refusal("other buckets need a replay of the step", missing)
    if missing and (basis.efficiency or 1.0) < LEAST_EFFICIENCY:
        return Refusal(f"below {LEAST_EFFICIENCY:.0%} efficiency only a replayed step is predicted", missing)
    step_s = sum(parts.values()) or _by_laws(basis, nodes)
    method: ledger.Method = "laws" if missing else "replay"
    half = {
        coverage: ledger.half_width(known, method, ratio, coverage / 100)
        or _half_without_ledger(basis, ratio, check, coverage / 100)
        for coverage in (50, 90)
    }
    rate = basis.samples * nodes / step_s
    each = rate / (nodes * basis.per_node)
    efficiency = each / basis.base_rate if basis.base_rate else None
    return Forecast(nodes, basis.per_node, method, step_s, half, rate, efficiency, parts, missing)


def _half_without_ledger(basis: Basis, ratio: float, check: float, confidence: float) -> float:
    """Spread between launches, and a model error of max(2 %, 1.5 % x log2 ratio) at 90 %, narrower for less
    as for normal errors; at least the error of the replay at the largest size."""
    normal = float(ndtri(0.5 + confidence / 2))
    launch = normal * basis.spread * math.sqrt(1 + 1 / len(basis.largest.launches))
    model = max(0.02, 0.015 * math.log2(ratio), abs(check)) * normal / float(ndtri(0.95))
    return math.hypot(launch, model)


def _by_laws(basis: Basis, nodes: int) -> float:
    """By sizes on several nodes where there are two of them: a single node has another network."""
    several = [size for size in basis.sizes if size.nodes > 1]
    used = several if len(several) > 1 else basis.sizes
    return ensemble([size.nodes for size in used], [size.step_s for size in used], nodes)


def replayed(basis: Basis, nodes: int, step: ProfiledStep | None = None) -> dict[str, float]:
    """Seconds of the parts of a step, by default the measured one, on so many nodes. Raises
    `BelowMeasured`."""
    step, largest = step or basis.step, basis.largest
    assert step is not None
    seconds = [_seconds(basis, each, nodes) for each in step.collectives]
    if basis.is_blocking:
        exposed = sum(seconds)
    else:
        exposed = replay.exposed_s([each.start_s for each in step.collectives], seconds, step.backward_end_s)
    wait_s, transfer_s = largest.wait_s or 0.0, largest.transfer_s or 0.0
    return {
        "own work": largest.step_s - wait_s - transfer_s,
        "exposed communication": exposed,
        "waiting": replay.waiting_s(wait_s, largest.nodes, nodes),
    }


def replay_error(basis: Basis) -> float:
    """log(measured / replayed) at the largest measured size."""
    return math.log(basis.largest.step_s / sum(replayed(basis, basis.largest.nodes).values()))


def _seconds(basis: Basis, each: Collective, nodes: int) -> float:
    """Duration of a collective, whose group grows with the nodes; that of shards within a node stays."""
    assert basis.ring is not None
    assert each.bytes is not None
    assert each.ranks is not None
    if each.dimension == "shard":
        return each.duration_s
    members = basis.ring.members(each.ranks * nodes // basis.step_nodes, nodes)
    return basis.ring.seconds(each.kind, each.bytes, members)


def entry(basis: Basis, made: Forecast) -> ledger.Entry:
    """The line of the ledger for a prediction that is made now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    size = (made.nodes, made.per_node, basis.largest.nodes)
    return ledger.Entry(
        now, basis.inputs, basis.key, *size, made.method, made.step_s, made.half[50], made.half[90]
    )
