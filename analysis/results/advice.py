"""Advice on a bottleneck: config options that can help, without those that the records speak against.

`OPTIONS` is a table by topic: an option and the rules that forbid it. Runs of another program have none of
these options: their advice names the settings of the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analysis.read.differences import run_config
from analysis.results import communication
from analysis.results.bottlenecks import STRAGGLERS, Bottleneck
from analysis.results.compute_loss import DISTURBANCES, CauseName, compute_causes, doubts
from analysis.results.culprits import recurring
from analysis.results.curves import Curve, Point, rate_ratio
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import Study
from analysis.units import times

SMALL_MESSAGE = 2**20
"""Bytes of a message below which its latency is longer than its transfer."""
LATENCY_SHARE = 0.5
"""Share of the measured rate of the links below which latency takes longer than the transfer of bytes."""


class MeasuredValue(NamedTuple):
    """A value of an option that another configuration of the sweep measured at the same size."""

    value: str
    ratio: Estimate
    """Throughput with this value, divided by that of the compared point."""

    @property
    def faster(self) -> bool:
        """Whether its interval, or its one value, lies above 1."""
        return (self.ratio.value if self.ratio.low is None else self.ratio.low) > 1


@dataclass(frozen=True)
class Situation:
    """What is known of the runs of one size."""

    strategy: str = ""
    nodes: int = 2
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values of the runs by dotted key."""
    own_program: bool = True
    """Whether the trainer of this program, which has the options, made the runs."""
    causes: Sequence[CauseName] = ()
    """Of lost compute time, the largest first."""
    culprit: bool = False
    """Whether the search for stragglers named a rank or node."""
    several_nodes: bool = False
    """Whether the named rank is slow on several nodes, so that no node is the cause."""
    messages: int | None = None
    """Collectives of a rank in a step."""
    message_bytes: float | None = None
    """Mean bytes of a message."""
    rate_share: float | None = None
    """Bus bandwidth / measured rate of the slowest link."""
    divides_waiting: bool = True
    """Whether waiting and transfer were told apart."""
    shared_processors: bool = False
    """Whether ranks outnumber the processors, so that communication waits for them."""
    disturbed: str = ""
    """What else was at work on the nodes."""
    measured: Mapping[str, Sequence[MeasuredValue]] = field(default_factory=dict)
    """Other values of options that the sweep measured at this size, by dotted key."""


Rule = Callable[[Situation], bool]


def latency_dominates(at: Situation) -> bool:
    small = at.message_bytes is not None and at.message_bytes < SMALL_MESSAGE
    return small or (at.rate_share is not None and at.rate_share < LATENCY_SHARE)


def bandwidth_dominates(at: Situation) -> bool:
    return not latency_dominates(at)


def not_several_messages(at: Situation) -> bool:
    return at.messages is None or at.messages < 2


def not_one_message(at: Situation) -> bool:
    return at.messages != 1


def one_rank_a_node(at: Situation) -> bool:
    return at.nodes < 2 or at.config.get("resources.gpus_per_node") == 1


class Option(NamedTuple):
    """A row: a config option that helps unless a rule forbids it."""

    key: str
    setting: str
    """The same for another program."""
    values: tuple[str, ...] = ()
    """Values to try, or `MORE` or `LESS` than that of the runs."""
    unless: tuple[Rule, ...] = ()
    note: str = ""


MORE, LESS = ("more",), ("less",)
AIMS = {
    "gradients": "Communicate less",
    "shards": "Gather less or earlier",
    "bubble": "Make the bubble of the pipeline smaller",
    "input_s": "Load data in processes of its own",
    WAIT: "Waiting for ranks that are late in turn is a smaller share of a longer step",
    "optimizer_s": "Update faster",
    "checkpoint_s": "Save less often or in the background",
    "other_s": "Reduce work on the host",
    STRAGGLERS: "Leave the slow rank's node out of the next job",
    "own work": "Compare the slow rank's data and work with those of the others: it is slow on several nodes",
    "shared_processors": "Give each rank processors of its own",
    "smaller_batch": "Keep the kernels large",
    "slow_ranks": "Compare the ranks in the section of stragglers",
    "lower_clocks": "Look for the reason of the lower clocks: power limit, cooling, or another job",
    "unknown": "Record a trace at both sizes and compare the kernels",
}
"""What to do, by topic; a topic with options needs one of them."""
NEED_DIVIDED_WAITING = ("gradients", "shards")
"""Topics without advice where waiting was not told apart: less to send does not shorten waiting."""
_LARGER = Option("train.local_batch_size", "a larger batch of each rank", MORE)
_BUCKET, _SCHEME = "parallel.ddp.bucket_mb", "parallel.gradient_communication.scheme"
_BATCH, _STRATEGY = "train.global_batch_size", "parallel.strategy"
OPTIONS: Mapping[str, Sequence[Option]] = {
    "gradients": [
        Option(
            _BUCKET,
            "smaller buckets",
            LESS,
            (not_one_message, latency_dominates),
            "so that transfer overlaps with the backward pass",
        ),
        Option(
            _BUCKET,
            "larger buckets",
            MORE,
            (not_several_messages, bandwidth_dominates),
            "for fewer messages",
        ),
        Option(_SCHEME, "compressed gradients", ("fp16", "bf16", "powersgd"), (latency_dominates,)),
        Option(_SCHEME, "gradients reduced within a node first", ("hierarchical",), (one_rank_a_node,)),
        Option(_BATCH, "gradient accumulation", MORE, note="by accumulation"),
    ],
    "shards": [
        Option(
            "parallel.fsdp.reshard_after_forward",
            "parameters that stay gathered after the forward pass",
            ("false",),
        ),
        Option("parallel.fsdp.forward_prefetch", "prefetch of the next layer", ("true",)),
        Option("parallel.fsdp.reduce_dtype", "gradients reduced in bf16", ("bf16",), (latency_dominates,)),
        Option(_STRATEGY, "shards within a node (hybrid sharding)", ("hsdp",), (one_rank_a_node,)),
    ],
    "bubble": [
        Option(_BATCH, "more micro-batches", MORE, note="for more micro-batches"),
        Option("parallel.pipeline.stages", "fewer stages", LESS),
    ],
    "input_s": [Option("data.workers", "more loader workers with prefetch", MORE, note="and data.prefetch")],
    WAIT: [_LARGER],
    "optimizer_s": [
        Option("optim.fused", "a fused optimizer kernel", ("true",)),
        Option(_STRATEGY, "optimizer states divided among ranks (ZeRO, FSDP)", ("fsdp",)),
    ],
    "checkpoint_s": [
        Option("checkpoint.every_steps", "rarer checkpoints", MORE),
        Option("checkpoint.asynchronous", "checkpoints written in the background", ("true",)),
    ],
    "other_s": [
        Option("compile.scope", "compiled layers", ("blocks",)),
        Option("train.gc_every", "rarer garbage collection", MORE),
        Option("train.log_every", "rarer log lines", MORE),
        Option("profile.steps", "a profiler trace of some steps"),
    ],
    "shared_processors": [
        Option(
            "resources.nodes", "more nodes with fewer ranks on each", MORE, note="with fewer ranks on each"
        ),
        Option("resources.threads_per_rank", "one compute thread for each rank", ("1",)),
    ],
    "smaller_batch": [_LARGER],
    "unknown": [Option("profile.steps", "a profiler trace")],
}
"""By topic: options that help, and the rules that forbid them."""


def advice(bottleneck: Bottleneck, at: Situation, *, most: int | None = None) -> str:
    """One line on a bottleneck; empty where the records speak against each option.

    Options that the sweep measured as faster come first. `most`: number of options to name; all by default.
    """
    if at.disturbed:
        return f"Measure these sizes alone first: {at.disturbed}."
    topic = topic_of(bottleneck, at)
    if topic not in OPTIONS:
        return f"{AIMS[topic]}."
    lines = [line for row in OPTIONS[topic] if (line := _line(row, at)) is not None]
    named = [text for _, text in sorted(lines, key=lambda line: -line[0])][:most]
    hidden = topic in NEED_DIVIDED_WAITING and not at.divides_waiting
    return f"{AIMS[topic]}: {'; or '.join(named)}." if named and not hidden else ""


def topic_of(bottleneck: Bottleneck, at: Situation) -> str:
    """The key of `AIMS`."""
    phase, culprit = bottleneck.phase, at.culprit and not bottleneck.rest
    if phase == "compute_s":
        causes = [name for name in at.causes if not (bottleneck.rest and name == "slow_ranks")]
        phase = causes[0] if causes else "unknown"
    if phase == STRAGGLERS or (culprit and phase in (WAIT, "slow_ranks")):
        return "own work" if at.several_nodes else STRAGGLERS
    if at.shared_processors and phase in (WAIT, TRANSFER):
        return "shared_processors"
    if phase == TRANSFER:
        return {"fsdp": "shards", "hsdp": "shards", "pipeline": "bubble"}.get(at.strategy, "gradients")
    return "bubble" if phase == WAIT and at.strategy == "pipeline" else phase


def _line(row: Option, at: Situation) -> tuple[float, str] | None:
    """Measured gain, 0 without any, and text of an option; None where it is set, or forbidden by a rule or by
    measurements."""
    tried = [each for each in at.measured.get(row.key, ()) if _is_meant(row, each.value, at)]
    best = max((each for each in tried if each.faster), key=lambda each: each.ratio.value, default=None)
    if best is not None:
        gain = best.ratio.value
        return gain, f"{row.key}={best.value} (measured here: {times(gain)} the throughput)"
    directed = row.values in (MORE, LESS)
    excluded = {each.value.lower() for each in tried} | {str(at.config.get(row.key)).lower()}
    left = [] if directed and tried else [value for value in row.values if value not in excluded]
    if any(rule(at) for rule in row.unless) or (row.values and not left):
        return None
    if not at.own_program:
        return 0.0, row.setting
    kind = {MORE: f"a larger {row.key}", LESS: f"a smaller {row.key}", (): row.key}
    text = kind.get(row.values, f"{row.key}={' or '.join(left)}")
    return 0.0, f"{text} {row.note}".rstrip()


def _is_meant(row: Option, value: str, at: Situation) -> bool:
    """Whether a measured value is one that the option advises; any where that of the runs is unknown."""
    if row.values not in (MORE, LESS):
        return value.lower() in row.values
    try:
        return (float(value) > float(at.config[row.key])) == (row.values == MORE)
    except (KeyError, TypeError, ValueError):
        return True


def situation(study: Study, curve: Curve, point: Point) -> Situation:
    """What the records of a point say on its bottlenecks."""
    first, profiled = point.runs[0], communication.profiled(point)
    named = [part for part in recurring(study.diagnoses(point)) if part.first.ranks]
    config, share = run_config(first), communication.measured_share(point)
    size = communication.message_bytes(point)
    kinds = doubts(study, curve, point)
    return Situation(
        strategy=str(point.metrics[0].strategy).lower(),
        nodes=point.nodes,
        config=config,
        own_program="command" not in config and first.ingested is None,
        causes=[name for cause in compute_causes(study, curve, point) for name in cause.evidence],
        culprit=bool(named),
        several_nodes=bool(named and named[0].nodes > 1),
        messages=max((each.count for each in profiled), default=None),
        message_bytes=size.value if size else None,
        rate_share=share.value if share else None,
        divides_waiting=WAIT in point.phases.seconds,
        shared_processors="shared processors" in kinds,
        disturbed=next((text for kind, text in DISTURBANCES.items() if kind in kinds), ""),
        measured=measured_values(curve, point, study.curves),
    )


def measured_values(curve: Curve, point: Point, curves: Sequence[Curve]) -> dict[str, list[MeasuredValue]]:
    """Other values of each option, by dotted key, where no other option of the sweep differs."""
    values: dict[str, list[MeasuredValue]] = {}
    for other in curves:
        if other.sweep != curve.sweep or other.emulated != curve.emulated:
            continue
        keys = [key for key in curve.axes | other.axes if curve.axes.get(key) != other.axes.get(key)]
        if len(keys) == 1 and keys[0] in other.axes:
            values.setdefault(keys[0], []).extend(
                MeasuredValue(str(other.axes[keys[0]]), rate_ratio(each, point))
                for each in other.points
                if each.shape == point.shape
            )
    return values
