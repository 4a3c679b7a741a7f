"""One line of advice on each bottleneck, with the config options to try.

Runs of another program have none of these options: their advice names the settings of the field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.losses.bottlenecks import STRAGGLERS
from analysis.losses.compute_loss import CauseName
from analysis.losses.measured_options import MeasuredValue
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from analysis.units import times

_OPTION = re.compile(r"\b([a-z_]+(?:\.[a-z_]+)+)(?:=(\w+))?")
"""A config option in a line of advice, with the value that the line names."""


class _Line(NamedTuple):
    """An aim, and options that serve it."""

    aim: str
    options: tuple[str, ...] = ()
    """Config options of this program."""
    settings: tuple[str, ...] = ()
    """The same for another program, without names of options."""


_FEWER_BYTES = (
    "parallel.gradient_communication.scheme (fp16, bf16, powersgd, hierarchical)",
    "a larger train.global_batch_size by accumulation",
)
_FEWER_BYTES_SETTINGS = (
    "gradients in fp16 or bf16, compressed (PowerSGD), or reduced within a node first",
    "gradient accumulation",
)
_GRADIENTS = _Line(
    "Send fewer bytes",
    (
        *_FEWER_BYTES,
        "another parallel.ddp.bucket_mb (smaller messages overlap more, larger ones use the link better)",
    ),
    (
        *_FEWER_BYTES_SETTINGS,
        "another bucket size (smaller messages overlap more, larger ones use the link better)",
    ),
)
_ONE_MESSAGE = _Line(
    "Divide the one message of a step, so that its transfer overlaps with the backward pass",
    ("a smaller parallel.ddp.bucket_mb", *_FEWER_BYTES),
    ("a smaller bucket size", *_FEWER_BYTES_SETTINGS),
)
_SHARDS = _Line(
    "Gather less or earlier",
    (
        "parallel.fsdp.reshard_after_forward=false",
        "parallel.fsdp.forward_prefetch",
        "parallel.fsdp.reduce_dtype=bf16",
        "parallel.strategy=hsdp, which gathers within a node",
    ),
    (
        "parameters that stay gathered after the forward pass",
        "prefetch of the next layer",
        "gradients reduced in bf16",
        "hybrid sharding, which gathers within a node",
    ),
)
_BUBBLE = _Line(
    "Make the bubble of the pipeline smaller",
    ("more micro-batches by a larger train.global_batch_size", "fewer parallel.pipeline.stages"),
    ("more micro-batches by a larger global batch", "fewer stages"),
)
_TRANSFER = {"ddp": _GRADIENTS, "fsdp": _SHARDS, "hsdp": _SHARDS, "pipeline": _BUBBLE}
_LEAVE_OUT = _Line("Leave the slow rank's node out of the next job")
_OWN_WORK = _Line(
    "Compare the slow rank's data and work with those of the others: it is slow on several nodes"
)
_PHASES = {
    "input_s": _Line(
        "Load data in processes of its own",
        ("data.workers and data.prefetch",),
        ("more loader workers with prefetch",),
    ),
    "comm_wait_s": _Line(
        "Waiting for ranks that are late in turn is a smaller share of a longer step",
        ("a larger train.local_batch_size",),
        ("a larger batch of each rank",),
    ),
    "optimizer_s": _Line(
        "Update faster",
        ("the fused kernel, optim.fused=true", "dividing the update among ranks, parallel.strategy=fsdp"),
        ("a fused optimizer kernel", "optimizer states divided among ranks (ZeRO, FSDP)"),
    ),
    "checkpoint_s": _Line(
        "Save less often or in the background",
        ("checkpoint.every_steps or checkpoint.every_s", "checkpoint.asynchronous=true"),
    ),
    "other_s": _Line(
        "Reduce work on the host",
        ("compile.scope=blocks", "train.gc_every", "train.log_every", "profile.steps for a trace of it"),
        ("compiled layers", "rarer garbage collection", "rarer log lines", "a profiler trace of some steps"),
    ),
    STRAGGLERS: _LEAVE_OUT,
}
_CAUSES: dict[CauseName, _Line] = {
    "shared_processors": _Line(
        "Give each rank processors of its own",
        ("more resources.nodes with fewer resources.gpus_per_node", "resources.threads_per_rank=1"),
        ("more nodes with fewer ranks on each", "one compute thread for each rank"),
    ),
    "smaller_batch": _Line(
        "Keep the kernels large",
        ("a larger train.local_batch_size", "weak scaling"),
        ("a larger batch of each rank", "weak scaling"),
    ),
    "slow_ranks": _Line("Compare the ranks in the section of stragglers"),
    "lower_clocks": _Line("Look for the reason of the lower clocks: power limit, cooling, or another job"),
    "unknown": _Line("Record a trace at both sizes and compare the kernels", ("profile.steps",)),
}


def advice(
    phase: str,
    strategy: str | None,
    causes: Sequence[CauseName] = (),
    *,
    culprit: bool = False,
    several_nodes: bool = False,
    config: Mapping[str, Any] | None = None,
    messages: int | None = None,
    own_program: bool = True,
    measured: Mapping[str, Sequence[MeasuredValue]] | None = None,
    most: int | None = None,
) -> str:
    """Advice on lost time in a phase. Options that the sweep measured as faster come first, slower ones last.

    Args:
        phase: of `records.steps.PHASES`, or `STRAGGLERS`.
        strategy: `Metrics.strategy`.
        causes: of lost compute time, the largest first (`analysis.losses.compute_loss`).
        culprit: whether the search for stragglers named a rank or node.
        several_nodes: whether the named rank is slow on several nodes, so that no node is the cause.
        config: values of the runs by dotted key; options with these values are left out.
        messages: collectives of a rank in a step; None where unknown.
        own_program: whether the trainer of this program, which has these options, made the runs.
        measured: other values of options that the sweep measured at this size, by dotted key.
        most: number of options to name; all by default.
    """
    line = _line(phase, strategy, causes, culprit=culprit)
    if line is _LEAVE_OUT and several_nodes:
        line = _OWN_WORK
    if line is _GRADIENTS and messages == 1:
        line = _ONE_MESSAGE
    options = [option for option in line.options if not _is_set(option, config or {})]
    if (config or {}).get("resources.gpus_per_node") == 1:
        options = _across_nodes(options)
    options = _with_measurements(options, measured or {})
    if not own_program:
        options = list(line.settings)
    return f"{line.aim}: {'; or '.join(options[:most])}." if options else f"{line.aim}."


def _across_nodes(options: Sequence[str]) -> list[str]:
    """The options for one rank a node, where nothing can be combined within a node."""
    return [option.replace(", hierarchical)", ")") for option in options if "=hsdp" not in option]


def _with_measurements(options: Sequence[str], measured: Mapping[str, Sequence[MeasuredValue]]) -> list[str]:
    """The options with what the sweep measured of them, the fastest first; without slower values."""
    found: list[tuple[float, str]] = []
    for option in options:
        named = _OPTION.search(option)
        values = measured.get(named[1], []) if named else []
        if named and named[2]:
            values = [each for each in values if each.value.lower() == named[2]]
        best = max((each.ratio for each in values), default=1.0)
        if named and named[2] and best < 1 / (1 + EQUIVALENCE_MARGIN):
            continue
        for each in values:
            if each.ratio < 1 / (1 + EQUIVALENCE_MARGIN):
                option = re.sub(
                    rf"(?<=[(, ]){re.escape(each.value)}, |, {re.escape(each.value)}(?=\))", "", option
                )
        gain = 0.0 if abs(math.log(best)) <= math.log1p(EQUIVALENCE_MARGIN) else math.log(best)
        found.append((gain, _noted(option, values)))
    return [option for _, option in sorted(found, key=lambda each: -each[0])]


def _noted(option: str, values: Sequence[MeasuredValue]) -> str:
    if not values:
        return option
    shown = ", ".join(f"{each.value} has {times(each.ratio)}" for each in values)
    begin = f"{option[:-1]}; " if option.endswith(")") else f"{option} ("
    return f"{begin}measured here: {shown} the throughput)"


def _line(phase: str, strategy: str | None, causes: Sequence[CauseName], *, culprit: bool) -> _Line:
    if phase == "compute_s":
        first = causes[0] if causes else "unknown"
        return _LEAVE_OUT if culprit and first == "slow_ranks" else _CAUSES[first]
    if phase == "comm_transfer_s":
        return _TRANSFER.get((strategy or "").lower(), _GRADIENTS)
    if phase == "comm_wait_s" and strategy == "pipeline":
        return _BUBBLE
    return _LEAVE_OUT if phase == "comm_wait_s" and culprit else _PHASES[phase]


def _is_set(option: str, config: Mapping[str, Any]) -> bool:
    """Whether the config has the value that an option advises as `key=value`."""
    found = _OPTION.search(option)
    return found is not None and found[2] is not None and str(config.get(found[1])).lower() == found[2]
