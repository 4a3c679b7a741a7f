"""What a rank writes down of its steps, one by one or some together."""

from __future__ import annotations

from disttrain.records.base import Record

PHASES = (
    "compute_s",
    "input_s",
    "comm_wait_s",
    "comm_transfer_s",
    "optimizer_s",
    "checkpoint_s",
    "other_s",
)
"""The parts every step is divided into, without gap or overlap; they sum to `step_s`."""


class Step(Record):
    """One line of `steps-RRRRR.jsonl`: one optimizer step on one rank. Seconds unless named otherwise."""

    step: int
    """1 is the first."""
    start_s: float
    """Since this rank's loop began, monotonic."""
    step_s: float
    compute_s: float
    input_s: float
    comm_wait_s: float | None
    """Of the communication that compute waited for: until the last rank had come to it. Null where it is not
    measured (see `Metrics.comm_method`), or where the run ended before the ranks had compared."""
    comm_transfer_s: float | None
    """The rest of it: bytes on their way while all ranks waited. Null as `comm_wait_s` is."""
    comm_exposed_s: float | None
    """Both together, as this rank alone measures it."""
    optimizer_s: float
    checkpoint_s: float
    other_s: float
    samples: int
    """Samples this rank trained on in this step."""
    loss: float | None
    """Mean loss over this rank's own samples; null if it was not finite."""
    lr: float


class StepAggregate(Record):
    """One line of `steps-RRRRR.jsonl` of a long run: consecutive steps on one rank put together.

    After step `telemetry.full_records` its lines are of this kind, but for sampled steps. No window holds
    steps of an attempt's warm-up and others.
    """

    first: int
    last: int
    steps: int
    """How many are in it: all from the first to the last."""
    start_s: float | None
    """When the first of them began, since this rank's loop began. Null in the first line of an attempt that
    holds what was in no line yet at the checkpoint, of an earlier attempt."""
    step_s: float
    """Sum, as the classes below are."""
    compute_s: float
    input_s: float
    comm_wait_s: float | None
    comm_transfer_s: float | None
    comm_exposed_s: float | None
    optimizer_s: float
    checkpoint_s: float
    other_s: float
    shortest_s: float
    shortest_step: int
    longest_s: float
    longest_step: int
    bins: list[tuple[int, int]]
    """Distribution of the steps' durations: (i, count) for those in [1.01^i, 1.01^(i+1)) seconds."""
    samples: int
    loss: float | None
    """Mean over the steps."""
    lr: float
    """Of the last step."""
