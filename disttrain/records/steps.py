"""Step records of a rank: single steps, aggregates of consecutive steps, and their log-scale histogram.

Bins of the histogram grow by 1 %, so a value is known to 0.5 % over any range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from disttrain.records.base import Record

RESOLUTION = 1.01
"""Ratio of the upper to the lower edge of a bin."""
_LOG = math.log(RESOLUTION)
_SHORTEST_S = 1e-9


def bin_of(seconds: float) -> int:
    """Index of the bin of a duration: bin i covers [1.01^i, 1.01^(i+1)) seconds."""
    return math.floor(math.log(max(seconds, _SHORTEST_S)) / _LOG)


def durations(bins: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Durations in seconds from (bin, count) pairs: the geometric middle of each bin, repeated by its
    count."""
    places, counts = np.asarray(bins, dtype=np.int64).T
    return np.repeat(np.exp((places + 0.5) * _LOG), counts)


PHASES = (
    "compute_s",
    "input_s",
    "comm_wait_s",
    "comm_transfer_s",
    "optimizer_s",
    "checkpoint_s",
    "other_s",
)
"""Phases of a step, without gap or overlap; they sum to `step_s`."""


class _Steps(Record):
    """Seconds and other values of one or more optimizer steps on one rank; phases are null where an ingested
    table lacks them."""

    start_s: float | None
    """Start of the (first) step since this rank's loop began; null in ingested tables without it, and in an
    aggregate carried by a checkpoint."""
    step_s: float
    """Duration of the step, the sum of the phases below."""
    gap_s: float | None = None
    """Time between a step and the one before: profiling, validation, waiting for a checkpoint."""
    compute_s: float | None
    """Forward and backward pass."""
    input_s: float | None
    """Waiting for the batch."""
    comm_wait_s: float | None
    """Exposed communication before the last rank arrived; null where it was not measured."""
    comm_transfer_s: float | None
    """The rest of the exposed communication: data transfer."""
    comm_exposed_s: float | None
    """Sum of wait and transfer."""
    optimizer_s: float | None
    """Optimizer, with clipping."""
    checkpoint_s: float | None
    """Copy for a checkpoint."""
    other_s: float
    """The rest of the step."""
    samples: int
    """Samples of this rank."""
    loss: float | None
    """Mean loss over these samples; null if not finite."""
    lr: float | None
    """Learning rate of the (last) step."""
    grad_norm: float | None = None
    """L2 norm of the gradients of the global batch before clipping; null if not finite or not needed."""
    extra: dict[str, float | None] = {}
    """Further values by name."""


class Step(_Steps):
    """One line of `steps-RRRRR.jsonl`: one optimizer step."""

    step: int
    """Number of the step, from 1."""
    skipped: bool = False
    """Whether the update was skipped, because the gradient norm was not finite."""


class StepAggregate(_Steps):
    """One line of `steps-RRRRR.jsonl` of a long run: consecutive steps, aggregated.

    Durations, `samples` and `skipped` are sums over the steps; `loss`, `grad_norm` and `extra` are means of
    the recorded, finite values. Lines after step `telemetry.full_records` are aggregates, except for profiled
    steps. An aggregate never mixes warm-up steps of an attempt with others.
    """

    first: int
    last: int
    steps: int
    """Number of steps: all from `first` to `last`."""
    skipped: int = 0
    """Steps whose update was skipped because the gradient norm was not finite."""
    shortest_s: float
    shortest_step: int
    longest_s: float
    longest_step: int
    bins: list[tuple[int, int]]
    """Histogram of step durations: (i, count) for the bin [1.01^i, 1.01^(i+1)) seconds."""
