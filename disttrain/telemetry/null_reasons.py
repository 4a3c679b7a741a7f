"""Why what a summary holds is null: a pure function from the summary to the reasons.

`disttrain.telemetry.throughput` and others give the reasons of what they work out themselves; the table
here has all the rest. A null that needs none is a fact: nothing stopped the run, no checkpoint was gone on
from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES
from disttrain.telemetry.collective_stats import LARGEST_SHARE

NOTHING_MEASURED = "no step was measured"
NO_FLOPS = "the model's FLOPs could not be counted"
ALONE = "one rank has nobody to communicate with"
NOT_EMULATED = "the model is not emulated"
_NO_BYTES = "the profiler did not tell the bytes of a collective"
_COLLECTIVES = {
    **dict.fromkeys(("comm.bytes", "comm.bus_bytes_per_s", "comm.collectives.bytes"), _NO_BYTES),
    **dict.fromkeys(
        ("comm.collectives.algorithm_bytes_per_s", "comm.collectives.bus_bytes_per_s"),
        f"{_NO_BYTES}, or that it took any time",
    ),
}


@dataclass(frozen=True)
class Sampling:
    """How many steps were to be sampled for their collectives."""

    asked: int
    """By `telemetry.profiled_steps`."""
    planned: int
    """For a run of this length."""
    taken: int
    """By this attempt, so far."""


def reasons(metrics: Metrics, sampling: Sampling, *, late: str, comm: str | None) -> dict[str, str]:
    """Why each figure of `metrics` that is null is, by its name; the reasons it has already stay.

    A name in dots leads through records, an entry of a list goes by the list's name: `comm.collectives.bytes`
    is null in some of them. `late` is why the emulation's error is not known, and `comm`, where this rank can
    tell, why exposed communication is not; of use only if they are not.
    """
    why = {
        **dict.fromkeys(("measured_s", "step_time"), NOTHING_MEASURED),
        **{f"composition.{name}": NOTHING_MEASURED for name in PHASES},
        **_communication(metrics, sampling, comm),
        "emulation_late_s": late,
        **dict.fromkeys(("model_flops_per_sample", "flops_method"), NO_FLOPS),
        "compute_dtypes": metrics.null_reasons.get("peak_flops", NO_FLOPS),  # as long as they are not known
        **dict.fromkeys(("loss_history.loss", "eval_history.loss"), "a loss that is not finite"),
        **{
            f"eval_history.metrics.{name}": "a metric that is not finite"
            for point in metrics.eval_history
            for name in point.metrics
        },
    }
    nulls = {name: reason for name, reason in why.items() if _is_null(metrics, name.split("."))}
    return nulls | metrics.null_reasons


def _communication(metrics: Metrics, sampling: Sampling, reason: str | None) -> dict[str, str]:
    exposed = ("communication_overhead_percent", "communication_computation_ratio")
    sampled = ("comm", "communication_time_per_step")
    if metrics.comm_method is None:
        alone = metrics.world_size == 1
        why = reason or (ALONE if alone else "a rank did not see it")
        parts = ("composition.comm_wait_s", "composition.comm_transfer_s")
        return {
            **dict.fromkeys(("comm_method", "comm_split", *exposed, *parts), why),
            **dict.fromkeys(sampled, _no_samples(sampling) if sampling.planned else why),
            **_COLLECTIVES,
        }
    no_compute = "a rank without compute in measured steps"
    return {
        **dict.fromkeys(exposed, no_compute if metrics.measured_steps else NOTHING_MEASURED),
        **dict.fromkeys(sampled, _no_samples(sampling)),
        **_COLLECTIVES,
    }


def _no_samples(sampling: Sampling) -> str:
    if not sampling.asked:
        return "telemetry.profiled_steps is 0"
    if not sampling.planned:
        return f"no step is sampled: at most one in {LARGEST_SHARE} after the warm-up, none that is traced"
    if not sampling.taken:
        return "this attempt has not come to a step that is sampled"
    return "no sampled step shows the same collectives on all ranks"


def _is_null(value: Any, path: list[str]) -> bool:
    """Whether what `path` leads to is null, or will be in strict JSON. Within what is null, nothing is."""
    if isinstance(value, list):
        return any(_is_null(each, path) for each in value)
    if not path:
        return value is None or (isinstance(value, float) and not math.isfinite(value))
    if value is None:
        return False
    inner = value.get(path[0]) if isinstance(value, dict) else getattr(value, path[0])
    return _is_null(inner, path[1:])
