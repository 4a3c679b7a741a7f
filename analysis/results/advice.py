"""Advice on a bottleneck: config options that can help, without those that the records speak against.

`advice.yaml` is the table of what to do. Runs of another program have none of these options: their advice
names the actions alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import msgspec

from analysis.results.communication import measured_share, message_bytes, profiled
from analysis.results.culprits import recurring
from analysis.results.curves import Curve, Point, rate_ratio
from analysis.results.lost_time import Bottleneck, compute_causes, doubts_of
from analysis.results.phases import WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import times

SMALL_MESSAGE = 2**20
"""Bytes of a message below which its latency is longer than its transfer."""
LATENCY_SHARE = 0.5
"""Share of the measured rate of the links below which latency takes longer than the transfer of bytes."""


class Option(msgspec.Struct, forbid_unknown_fields=True):
    """A config option that helps where all these facts hold."""

    action: str
    key: str
    to: list[str] = []
    """Values to try; without them, the action has the direction."""
    facts: list[str] = []


class Topic(msgspec.Struct, forbid_unknown_fields=True):
    """A row of the table; with options, it needs one of them."""

    aim: str
    phases: list[str] = []
    facts: list[str] = []
    options: list[Option] = []


TOPICS = msgspec.yaml.decode(files("analysis.results").joinpath("advice.yaml").read_bytes(), type=list[Topic])


@dataclass(frozen=True)
class Situation:
    """What is known of the runs of one size."""

    facts: frozenset[str] = frozenset()
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values of the runs by dotted key; empty for another program."""
    causes: Sequence[str] = ()
    """Of lost compute time, the largest first."""
    measured: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    """By dotted key: other values that the sweep measured at this size, with their throughput / that of the
    runs."""


def advice(bottleneck: Bottleneck, at: Situation, *, most: int | None = None) -> str:
    """One line on a bottleneck; empty where the records speak against each option.

    Options that the sweep measured as faster come first. `most`: number of options to name; all by default.
    """
    phase, facts, causes = bottleneck.phase, set(at.facts), [*at.causes, "unknown"]
    if bottleneck.rest:  # without the part of the stragglers
        facts -= {"slow rank", "slow on several nodes"}
        causes = [name for name in causes if name != "slow ranks"]
    if phase == "compute_s":
        phase = causes[0]
    rows = (row for row in TOPICS if phase in (row.phases or [phase]) and facts.issuperset(row.facts))
    topic = next(rows, None)
    if topic is None or not topic.options:
        return f"{topic.aim}." if topic else ""
    keys = {option.key for option in topic.options}
    ratios = [(ratio, f"{key}={value}") for key in keys for value, ratio in at.measured.get(key, {}).items()]
    faster = [(ratio.value, value) for ratio, value in ratios if (ratio.low or ratio.value) > 1]
    lines = [f"{value} (measured here: {times(gain)} the throughput)" for gain, value in sorted(faster)[::-1]]
    lines += [_line(option, at) for option in topic.options if facts.issuperset(option.facts)]
    named = [line for line in lines if line]
    return f"{topic.aim}: {'; or '.join(named[:most])}." if named else ""


def _line(option: Option, at: Situation) -> str:
    """Action and values of an option; empty where it is set or was measured."""
    tried = at.measured.get(option.key, {})
    excluded = {value.lower() for value in (*tried, str(at.config.get(option.key)))}
    left = [value for value in option.to if value not in excluded]
    if not left and (option.to or tried):
        return ""
    setting = f"{option.key}={' or '.join(left)}" if left else option.key
    return f"{option.action} ({setting})" if at.config else option.action


def situation(study: Study, curve: Curve, point: Point) -> Situation:
    """What the records of a point say on its bottlenecks."""
    run, strategy = point.runs[0], str(point.metrics[0].strategy).lower()
    named = [part for part in recurring(study.diagnoses(point)) if part.first.ranks]
    size, share = message_bytes(point), measured_share(point)
    messages = max((steps.count for steps in profiled(point)), default=0)
    latency = (size and size.value < SMALL_MESSAGE) or (share and share.value < LATENCY_SHARE)
    known = {
        "pipeline": strategy == "pipeline",
        "sharded": strategy in ("fsdp", "hsdp"),
        "waiting is known": WAIT in point.phases.seconds,
        "latency": latency,
        "bandwidth": not latency,
        "one message": messages == 1,
        "several messages": messages > 1,
        "several ranks a node": 1 < point.nodes < point.world_size,
        "slow rank": named,
        "slow on several nodes": named and named[0].nodes > 1,
    }
    config = run.compared
    return Situation(
        frozenset(name for name, holds in known.items() if holds) | doubts_of(study, point, curve.base),
        {} if "command" in config or run.ingested else config,
        [name for cause in compute_causes(study, curve, point) for name in cause.evidence],
        measured_values(curve, point, study.curves),
    )


def measured_values(curve: Curve, point: Point, curves: Sequence[Curve]) -> dict[str, dict[str, Estimate]]:
    """Throughput with other values of each option / that of a point, where no other option of the sweep
    differs."""
    values: dict[str, dict[str, Estimate]] = {}
    for other in curves:
        key = curve.only_difference(other)
        for each in other.points:
            if key in other.axes and each.shape == point.shape:
                values.setdefault(key, {})[str(other.axes[key])] = rate_ratio(each, point)
    return values
