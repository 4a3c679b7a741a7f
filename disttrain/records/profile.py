"""Traced steps: the profiler beside the step clock."""

from __future__ import annotations

from disttrain.records.base import Record


class Breakdown(Record):
    """Seconds of one step; null where that instrument cannot see it."""

    step_s: float | None
    compute_s: float | None
    """Forward and backward pass. Profiler: while kernels ran, or on a CPU operators. Clock: all of it, what
    lies between the operators included."""
    comm_s: float | None
    """While any collective was on its way."""
    hidden_s: float | None
    """While one was on its way and this rank computed."""
    exposed_s: float | None
    """Profiler: `comm_s` - `hidden_s`. Clock: while `backward()` waited for peers (`Metrics.comm_method`)."""


class ProfiledStep(Record):
    step: int
    profiler: Breakdown
    clock: Breakdown | None
    """Null where the run broke off before the step was recorded."""
    difference: Breakdown | None
    """Clock less profiler; null where either is."""
    null_reasons: dict[str, str] = {}
    """Why a figure above is null, by its name (`clock.comm_s`)."""


class ProfileRecord(Record):
    """`profile-RRRRR.json`: traced steps of one rank as the profiler saw them and as the step clock did."""

    rank: int
    steps: list[ProfiledStep]
