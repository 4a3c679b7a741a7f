"""Causes of lost compute time: from the evidence in the records of a run to a cause, or to `unknown`.

Compute that takes longer than the base predicts has several causes that records can show. Two have a size:
slow ranks (the named stragglers against the median of the other ranks; without a name, mean against median
over ranks) and lower clocks. They are factors of the compute time,

    ideal / actual = slow ranks x clocks x rest

and their parts by `analysis.losses.log_mean` sum exactly to the loss. The rest has two candidates without a
size of their own: processors shared by more ranks, and kernels of a smaller local batch. Without a candidate
the cause of the rest is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.losses.log_mean import additive_parts
from analysis.units import number, percent, plural, seconds

CauseName = Literal["slow_ranks", "lower_clocks", "shared_processors", "smaller_batch", "unknown"]

SMALL = 0.1
"""Sized causes below this share of the loss are counted in the rest."""
_NOT_SHOWN = "for a reason that the records do not show"


@dataclass(frozen=True)
class ComputeState:
    """Records of one size that bear on its compute time; None where a value is not known."""

    compute_s: float
    """Compute of a step in seconds, mean over ranks."""
    ranks: int
    local_batch_size: int
    """Samples of one pass over the model."""
    hosts: int | None = None
    processors: int | None = None
    """Processors of one host that the ranks may use."""
    threads: int = 1
    """Threads of one rank."""
    on_cpu: bool = False
    """Whether the processors do the compute: neither a GPU nor an emulation's wait."""
    oversubscribed: bool = False
    """More busy threads than processors on a host, or several ranks on one GPU."""
    rank_compute_s: NDArray[np.float64] | None = None
    """Mean compute per step of each rank in seconds, shape (ranks,)."""
    stragglers: Mapping[int, str] = field(default_factory=dict)
    """Ranks that the search for stragglers found, each with the name of its rank or node."""
    clock: float | None = None
    """SM clock as a fraction of its maximum, mean over GPUs."""

    @property
    def processors_per_rank(self) -> float | None:
        if self.processors is None or self.hosts is None:
            return None
        return self.processors * self.hosts / self.ranks


@dataclass(frozen=True)
class Cause:
    """One part of the compute loss."""

    names: tuple[CauseName, ...]
    """More than one: candidates that the records cannot separate."""
    seconds: float
    """Seconds per step, mean over ranks; negative for a gain."""
    text: str
    """The evidence, as one clause."""


def explain(point: ComputeState, base: ComputeState, work: float) -> tuple[Cause, ...]:
    """Causes of compute beyond `work` x that of the base.

    Args:
        work: samples per rank and step at the point / those at the base.

    Returns:
        Causes whose seconds sum exactly to the loss, named stragglers first; empty without a loss.
    """
    ideal_s = work * base.compute_s
    loss_s = point.compute_s - ideal_s
    if loss_s <= 0 or ideal_s <= 0:
        return ()
    factors = {"slow_ranks": _rank_factor(point, base), "lower_clocks": _clock_factor(point, base)}
    rest = ideal_s / point.compute_s / math.prod(factors.values())
    parts = additive_parts(ideal_s, factors | {"rest": rest})
    texts = {"slow_ranks": lambda: _rank_text(point), "lower_clocks": lambda: _clock_text(point, base)}
    causes = [
        Cause((name,), parts[name], texts[name]())
        for name in ("slow_ranks", "lower_clocks")
        if parts[name] >= SMALL * loss_s
    ]
    rest_s = loss_s - sum(cause.seconds for cause in causes)
    if abs(rest_s) > 1e-9 * loss_s:
        causes.append(_rest(point, base, rest_s))
    named = [cause for cause in causes if point.stragglers and cause.names == ("slow_ranks",)]
    others = [cause for cause in causes if cause not in named]
    return (*named, *sorted(others, key=lambda cause: -cause.seconds))


def sentence(causes: tuple[Cause, ...]) -> str:
    """The causes with their share of the loss, as one sentence; empty without causes.

    Where another part is a gain, a cause exceeds the loss: both then have their seconds in place of a share.
    """
    total_s = sum(cause.seconds for cause in causes)
    if total_s <= 0:
        return ""
    if len(causes) == 1:
        return f"Compute takes longer: {causes[0].text}."
    losses = [cause for cause in causes if cause.seconds > 0]
    gains = [cause for cause in causes if cause.seconds <= 0]
    if gains:
        lost_s, gained_s = (sum(abs(cause.seconds) for cause in each) for each in (losses, gains))
        texts = [f"{seconds(cause.seconds)} {cause.text}" if losses[1:] else cause.text for cause in losses]
        return (
            f"Compute takes {seconds(total_s)} longer: {seconds(lost_s)} lost, {seconds(gained_s)} gained. "
            f"Lost: {'; '.join(texts)}. Gained: {'; '.join(cause.text for cause in gains)}."
        )
    shares = [f"{percent(cause.seconds / total_s, 0)} {cause.text}" for cause in causes]
    return f"Compute takes longer; of the lost compute time: {'; '.join(shares)}."


def _rest(point: ComputeState, base: ComputeState, rest_s: float) -> Cause:
    if rest_s < 0:
        return Cause(("unknown",), rest_s, _NOT_SHOWN)
    found: dict[CauseName, str] = {}
    if shared := _processor_text(point, base):
        found["shared_processors"] = shared
    if point.local_batch_size < base.local_batch_size:
        found["smaller_batch"] = (
            f"smaller kernels, as a pass has {plural(point.local_batch_size, 'sample')} instead of "
            f"{base.local_batch_size}"
        )
    if not found:
        return Cause(("unknown",), rest_s, _NOT_SHOWN)
    return Cause(tuple(found), rest_s, " or ".join(found.values()))


def _processor_text(point: ComputeState, base: ComputeState) -> str:
    """Clause on processors shared by more ranks than at the base; empty without such sharing."""
    own, before = point.processors_per_rank, base.processors_per_rank
    if own is not None and before is not None:
        if own >= before or own >= point.threads or not (point.on_cpu or point.oversubscribed):
            return ""
        counts = f"{number(own)} processors instead of {number(before)}"
        return f"shared processors and memory, as a rank has {counts}"
    if point.oversubscribed and (not base.oversubscribed or point.ranks > base.ranks):
        return "shared processors, as ranks or threads outnumber the processors or GPUs of a host"
    return ""


def _rank_factor(point: ComputeState, base: ComputeState) -> float:
    """Usual / mean compute of ranks, against that of the base: below 1 if some ranks are slower than most."""
    return _balance(point) / _balance(base)


def _balance(state: ComputeState) -> float:
    found = state.rank_compute_s
    if found is None or not np.all(found > 0):
        return 1.0
    if state.stragglers:
        usual = np.where(np.isin(np.arange(len(found)), list(state.stragglers)), _usual_s(state), found)
        return float(np.mean(np.minimum(usual, found)) / np.mean(found))
    if len(found) < 3:  # of two ranks neither is the normal one
        return 1.0
    return float(np.median(found) / np.mean(found))


def _usual_s(state: ComputeState) -> float:
    """Median compute of the ranks that are no stragglers, in seconds."""
    assert state.rank_compute_s is not None
    return float(np.median(np.delete(state.rank_compute_s, list(state.stragglers))))


def _rank_text(point: ComputeState) -> str:
    ranks = point.rank_compute_s
    assert ranks is not None
    if point.stragglers:
        slow = max(point.stragglers, key=lambda rank: float(ranks[rank]))
        beyond = float(ranks[slow]) / _usual_s(point) - 1
        names = list(dict.fromkeys([point.stragglers[slow], *point.stragglers.values()]))
        more = f" (and {', '.join(names[1:])})" if len(names) > 1 else ""
        return f"{names[0]} computes {percent(beyond, 0)} longer than the median of the other ranks{more}"
    slowest = int(np.argmax(ranks))
    beyond = float(ranks[slowest] / np.median(ranks)) - 1
    return f"slow ranks, as rank {slowest} computes {percent(beyond, 0)} longer than the median rank"


def _clock_factor(point: ComputeState, base: ComputeState) -> float:
    return point.clock / base.clock if point.clock and base.clock else 1.0


def _clock_text(point: ComputeState, base: ComputeState) -> str:
    assert point.clock is not None
    assert base.clock is not None
    before = percent(base.clock, 0)
    return f"lower clocks, at {percent(point.clock, 0)} of the maximum instead of {before} at the base"
