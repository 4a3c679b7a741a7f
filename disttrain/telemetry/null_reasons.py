"""Reasons for null figures of a summary where a reader asks for them: communication, MFU and GPUs."""

from __future__ import annotations

from disttrain.records.metrics import Metrics
from disttrain.telemetry.facts import RunFacts

NO_FLOPS = "the model's FLOPs could not be counted"
_NOTHING_MEASURED = "no step was measured"
_ABOVE_1 = "above 1: the peak is of another dtype than the products"
_EXPOSED = ("communication_overhead_percent", "communication_computation_ratio")
_PROFILED = ("comm", "communication_time_per_step")


def reasons(
    metrics: Metrics, facts: RunFacts, *, comm: str | None, requested: int, planned: int
) -> dict[str, str]:
    """Reason for each null figure by its name. `comm`: why exposed communication was not measured;
    `requested` and `planned`: steps to be profiled for their collectives."""
    not_measured = None if metrics.measured_steps else _NOTHING_MEASURED
    if metrics.comm_method is None:
        alone = "one rank has no peers to communicate with" if metrics.world_size == 1 else None
        exposed = comm or alone or "a rank could not measure it"
    else:
        exposed = not_measured or "a rank without compute in measured steps"
    if metrics.comm_method is None and not planned:
        profiled = exposed
    elif not requested:
        profiled = "telemetry.profiled_steps is 0"
    elif not planned:
        profiled = "the run is too short for a profiled step after the warm-up"
    else:
        profiled = "no profiled step yet shows the same collectives on all ranks"
    no_flops = None if metrics.model_flops_per_sample else NO_FLOPS
    no_peak = facts.peak_reason if metrics.peak_flops is None else None
    why = {
        **dict.fromkeys(("comm_method", "comm_split", *_EXPOSED), exposed),
        **dict.fromkeys(_PROFILED, facts.communication.unprofiled_reason or profiled),
        "model_flops_per_sample": NO_FLOPS,
        "model_flops_per_s_per_rank": no_flops or _NOTHING_MEASURED,
        "peak_flops": facts.peak_reason,
        "mfu": no_peak or no_flops or not_measured or _ABOVE_1,
    }
    return {name: reason for name, reason in why.items() if getattr(metrics, name) is None}
