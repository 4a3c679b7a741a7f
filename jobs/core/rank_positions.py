"""Positions of the ranks in a hang, and the rank that caused it. Pure; standard library only.

One rank that hangs makes all ranks wait for it in a collective. `silent_rank` finds it in the positions of
all nodes: a stopped process, else a rank outside of any collective, else the rank furthest behind. With
several such ranks the silent rank is not determined: on CUDA the host of a rank that waits may block outside
of a collective, because the launch queue of its device is full.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RankPosition:
    """Position of one rank in training."""

    rank: int
    phase: str
    """See `disttrain.records.heartbeat.Phase`."""
    step: int
    """Optimizer steps done."""
    silent_s: float
    """Seconds in this phase, or in one step."""
    limit_s: float
    """Seconds after which the rank counts as hung."""
    waiting: bool
    """Whether it was in a collective."""
    stopped: bool
    """Whether it wrote no heartbeats: the process was stopped, or one thread held the GIL."""
    where: str
    """Line that its main thread executed."""

    @property
    def waits_for_others(self) -> bool:
        return self.waiting and not self.stopped

    @property
    def phase_text(self) -> str:
        return f"step {self.step + 1}" if self.phase == "step" else f"{self.phase} after step {self.step}"


def candidates(positions: Sequence[RankPosition]) -> list[RankPosition]:
    """The ranks that may be the one that the others wait for; none if each rank waits in the same step."""
    first = min(map(_order, positions))
    found = [each for each in positions if _order(each) == first]
    behind = any(each.step > found[0].step for each in positions)
    return found if behind or not found[0].waits_for_others else []


def silent_rank(positions: Sequence[RankPosition]) -> RankPosition | None:
    """The rank that the others wait for; None if the positions do not single out one."""
    found = candidates(positions)
    return found[0] if len(found) == 1 else None


def _order(position: RankPosition) -> tuple[bool, bool, int]:
    return (not position.stopped, position.waits_for_others, position.step)


def describe_hang(positions: Sequence[RankPosition], silent_nodes: Collection[int] = ()) -> str:
    """One line that names the silent rank, or a node without any sign, or the step of the hang."""
    found = silent_rank(positions)
    longest = max(positions, key=lambda each: each.silent_s)
    if found is not None and found.stopped:
        return f"rank {found.rank} stopped: no heartbeat for {found.silent_s:.0f} s, in {found.phase_text}"
    if found is not None:
        return f"rank {found.rank} was in {found.phase_text} for {found.silent_s:.0f} s, at {found.where}"
    several = candidates(positions)
    waited = f"in a collective of {longest.phase_text} for {longest.silent_s:.0f} s"
    if silent_nodes:
        said = f"were in {longest.phase_text} for {longest.silent_s:.0f} s" if several else f"waited {waited}"
        return f"node {min(silent_nodes)} gave no sign, while the other ranks {said}"
    if several:
        return _describe_several(several)
    return f"all ranks waited for each other {waited}: the network is slow or broken"


def _describe_several(found: Sequence[RankPosition]) -> str:
    longest = max(found, key=lambda each: each.silent_s)
    place, duration = longest.phase_text, f"for {longest.silent_s:.0f} s"
    if longest.stopped:
        text = f"stopped: no heartbeat {duration}, in {place}"
    else:
        text = f"were {'in' if longest.waiting else 'outside of'} a collective of {place} {duration}"
    return f"{len(found)} ranks {text}; the rank that hung is not determined"
