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
    """Start of the (first) step, in seconds since this rank's loop began; monotonic clock. Null where an
    ingested table lacks it, and in an aggregate that an earlier attempt began: the checkpoint carried it."""
    step_s: float
    gap_s: float | None = None
    """Wall time between a step and the one before that belongs to neither: profiling, validation, waiting for
    a checkpoint. Null where an ingested table lacks it."""
    compute_s: float | None
    input_s: float | None
    comm_wait_s: float | None
    """Exposed communication before the last rank arrived. Null where it is not measured (see
    `Metrics.comm_method`), or where the run ended before the ranks compared their times."""
    comm_transfer_s: float | None
    """The rest of the exposed communication: data transfer. Null whenever `comm_wait_s` is."""
    comm_exposed_s: float | None
    """Exposed communication as this rank measures it: the sum of both."""
    optimizer_s: float | None
    checkpoint_s: float | None
    other_s: float
    samples: int
    """Samples this rank trained on."""
    loss: float | None
    """Mean loss over this rank's samples; null if not finite."""
    lr: float | None
    """Learning rate of the (last) step."""
    grad_norm: float | None = None
    """L2 norm of the gradients of the global batch, before clipping. Null if it is not finite, or where
    neither `optim.grad_clip` nor `precision.on_non_finite` needs it."""
    extra: dict[str, float | None] = {}
    """Further values of the step by name."""


class Step(_Steps):
    """One line of `steps-RRRRR.jsonl`: one optimizer step."""

    step: int
    """Number of the step; the first is 1."""
    skipped: bool = False
    """Whether the update was skipped because the gradient norm was not finite."""


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
