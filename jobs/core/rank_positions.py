"""Positions of the ranks in a hang, and the rank that caused it. Pure; standard library only.

One rank that hangs makes all ranks wait for it in a collective. `silent_rank` finds it in the positions of
all nodes: a stopped process, else a rank outside of any collective, else the rank furthest behind. With
several such ranks the silent rank is not determined: on CUDA the host of a rank that waits may block outside
of a collective, because the launch queue of its device is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

SCRIPT = "script"
"""Phase of the ranks of a `command` without heartbeats: steps are not known."""


@dataclass(frozen=True)
class RankPosition:
    """Position of one rank in training."""

    rank: int
    phase: str
    """See `disttrain.records.heartbeat.Phase`; or `SCRIPT`."""
    step: int
    """Optimizer steps done."""
    silent_s: float
    """Seconds in this phase, or in one step."""
    limit_s: float
    """Seconds after which the rank counts as hung."""
    waiting: bool
    """Whether it was in a collective; in a script also whether its GPU worked."""
    stopped: bool
    """Whether it wrote no heartbeats: the process was stopped, or one thread held the GIL."""
    where: str
    """Line that its main thread executed; empty where unknown."""

    @property
    def waits_for_others(self) -> bool:
        return self.waiting and not self.stopped

    @property
    def phase_text(self) -> str:
        if self.phase == SCRIPT:
            return "the script"
        return f"step {self.step + 1}" if self.phase == "step" else f"{self.phase} after step {self.step}"


def candidates(positions: Sequence[RankPosition]) -> list[RankPosition]:
    """The ranks that may be the one that the others wait for; none if each rank waits in the same step.

    Of a script, it may be the only rank at another line than the others.
    """
    first = min(map(_order, positions))
    found = [each for each in positions if _order(each) == first]
    lines = Counter(each.where for each in found)
    apart = [each for each in found if lines[each.where] == 1]
    if found[0].phase == SCRIPT and len(apart) == 1:
        return apart
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
        sign = "output" if found.phase == SCRIPT else "heartbeat"
        return f"rank {found.rank} stopped: no {sign} for {found.silent_s:.0f} s, in {found.phase_text}"
    if found is not None:
        state = "silent and idle" if found.phase == SCRIPT else f"in {found.phase_text}"
        at = f", at {found.where}" if found.where else ""
        return f"rank {found.rank} was {state} for {found.silent_s:.0f} s{at}"
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
