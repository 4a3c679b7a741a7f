"""Reasons for the null figures of a summary: pure functions.

`disttrain.telemetry.throughput` returns the reasons for its figures; this module has all others. A null that
is a fact needs no reason: the run was not stopped, or resumed no checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES
from disttrain.telemetry.profiled.collective_summary import LARGEST_SHARE

NOTHING_MEASURED = "no step was measured"
NO_FLOPS = "the model's FLOPs could not be counted"
ALONE = "one rank has no peers to communicate with"
OWN_LOOP = "a training loop of the user sets its own precision"
NOT_EMULATED = "the model is not emulated"
DIFFERENT_COLLECTIVES = "the ranks exchange different messages, so no step is profiled for collectives"
_NO_BYTES = "the profiler did not record the bytes of a collective"
_COLLECTIVES = {
    **dict.fromkeys(("comm.bytes", "comm.bus_bytes_per_s", "comm.collectives.bytes"), _NO_BYTES),
    **dict.fromkeys(
        ("comm.collectives.algorithm_bytes_per_s", "comm.collectives.bus_bytes_per_s"),
        f"{_NO_BYTES}, or its duration is zero",
    ),
}


@dataclass(frozen=True)
class ProfilingPlan:
    """Numbers of steps profiled for their collectives."""

    requested: int
    """`telemetry.profiled_steps`."""
    planned: int
    """Steps that a run of this length profiles."""
    taken: int
    """Steps that this attempt has profiled so far."""


def reasons(
    metrics: Metrics, profiling: ProfilingPlan, *, late: str, comm: str | None, unprofiled: str | None = None
) -> dict[str, str]:
    """Reason for each null figure of `metrics` by its name, merged with `metrics.null_reasons`.

    A dotted name is a path through records. Entries of a list share one name: `comm.collectives.bytes` is
    null in at least one entry. `late` is the reason for a null `emulation_late_s`; `comm` is this rank's
    specific reason for null exposed communication, and `unprofiled` the one for null figures of collectives.
    """
    why = {
        **dict.fromkeys(("measured_s", "step_time"), NOTHING_MEASURED),
        **{f"composition.{name}": NOTHING_MEASURED for name in PHASES},
        **_communication(metrics, profiling, comm, unprofiled),
        "strategy": comm or "the wrapper of the model is unknown",
        **dict.fromkeys(("precision", "precision_reason"), OWN_LOOP),
        "emulation_late_s": late,
        **dict.fromkeys(("model_flops_per_sample", "flops_method"), NO_FLOPS),
        "compute_dtypes": metrics.null_reasons.get("peak_flops", NO_FLOPS),  # set once they are known
        **dict.fromkeys(("loss_history.loss", "eval_history.loss"), "a loss that is not finite"),
        "grad_norm_history.grad_norm": "a gradient norm that is not finite",
        **{
            f"eval_history.metrics.{name}": "a metric that is not finite"
            for point in metrics.eval_history
            for name in point.metrics
        },
    }
    nulls = {name: reason for name, reason in why.items() if _is_null(metrics, name.split("."))}
    return nulls | metrics.null_reasons


def _communication(
    metrics: Metrics, profiling: ProfilingPlan, reason: str | None, unprofiled: str | None
) -> dict[str, str]:
    exposed = ("communication_overhead_percent", "communication_computation_ratio")
    sampled = ("comm", "communication_time_per_step")
    if metrics.comm_method is None:
        alone = metrics.world_size == 1
        why = reason or (ALONE if alone else "a rank could not measure it")
        parts = ("composition.comm_wait_s", "composition.comm_transfer_s")
        return {
            **dict.fromkeys(("comm_method", "comm_split", *exposed, *parts), why),
            **dict.fromkeys(sampled, _no_samples(profiling) if profiling.planned else why),
            **_COLLECTIVES,
        }
    no_compute = "a rank without compute in measured steps"
    return {
        **dict.fromkeys(exposed, no_compute if metrics.measured_steps else NOTHING_MEASURED),
        **dict.fromkeys(sampled, unprofiled or _no_samples(profiling)),
        **_COLLECTIVES,
    }


def _no_samples(profiling: ProfilingPlan) -> str:
    if not profiling.requested:
        return "telemetry.profiled_steps is 0"
    if not profiling.planned:
        return f"no step is profiled: at most one in {LARGEST_SHARE} after the warm-up, none of a trace"
    if not profiling.taken:
        return "this attempt has not reached a profiled step"
    return "no profiled step shows the same collectives on all ranks"


def _is_null(value: Any, path: list[str]) -> bool:
    """Whether the value at `path` is null or not finite; false below a null record."""
    if isinstance(value, list):
        return any(_is_null(each, path) for each in value)
    if not path:
        return value is None or (isinstance(value, float) and not math.isfinite(value))
    if value is None:
        return False
    inner = value.get(path[0]) if isinstance(value, dict) else getattr(value, path[0])
    return _is_null(inner, path[1:])
