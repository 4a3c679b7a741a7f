"""Record of traced steps: profiler and step clock compared."""

from __future__ import annotations

from disttrain.records.base import Record


class Breakdown(Record):
    """Durations of one step in seconds; null where the instrument cannot measure them."""

    step_s: float | None
    compute_s: float | None
    """Forward and backward pass. Profiler: time in kernels, or in operators on a CPU. Clock: the whole
    passes, including the time between operators."""
    comm_s: float | None
    """Time during which any collective was in progress."""
    hidden_s: float | None
    """Time during which a collective was in progress and this rank computed."""
    exposed_s: float | None
    """Profiler: `comm_s` - `hidden_s`. Clock: while `backward()` waited for peers (`Metrics.comm_method`)."""


class ProfiledStep(Record):
    step: int
    profiler: Breakdown
    clock: Breakdown | None
    """Null where the run ended before the step was recorded."""
    difference: Breakdown | None
    """Clock minus profiler; null where either is null."""
    null_reasons: dict[str, str] = {}
    """Reason for each null figure above, by its name (`clock.comm_s`)."""


class ProfileRecord(Record):
    """`profile-RRRRR.json`: traced steps of one rank, by the profiler and by the step clock."""

    rank: int
    steps: list[ProfiledStep]
