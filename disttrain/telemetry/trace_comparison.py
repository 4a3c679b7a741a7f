"""Compare the breakdown of traced steps by the profiler and by the step clock. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from disttrain.records.profile import Breakdown, ProfiledStep, ProfileRecord
from disttrain.telemetry.step_clock import COMM, COMM_TRANSFER, COMPUTE, PhaseSeconds
from disttrain.telemetry.trace_parsing import StepTrace, length, merged, overlap

_UNSEEN_BY_CLOCK = dict.fromkeys(
    ("clock.comm_s", "clock.hidden_s"), "the step clock does not measure communication that compute hides"
)
_NOTHING_COMPUTED = dict.fromkeys(
    ("profiler.compute_s", "profiler.hidden_s", "profiler.exposed_s"),
    "the trace has no operator of a backward pass on the training thread",
)


def compare_with_clock(
    rank: int, seen: Iterable[tuple[int, StepTrace]], own: Mapping[int, PhaseSeconds]
) -> ProfileRecord:
    """Compare the profiler's steps (`seen`) with the step clock's seconds in each phase (`own`), by step
    number.

    A figure that one instrument cannot measure is null, and so is its difference.
    """
    steps = []
    for step, trace in seen:
        profiler = _of_trace(trace)
        clock = _of_clock(own[step]) if step in own else None
        steps.append(
            ProfiledStep(
                step=step,
                profiler=profiler,
                clock=clock,
                difference=_difference(profiler, clock) if clock else None,
                null_reasons=_UNSEEN_BY_CLOCK | ({} if trace.busy is not None else _NOTHING_COMPUTED),
            )
        )
    return ProfileRecord(rank=rank, steps=steps)


def _of_trace(trace: StepTrace) -> Breakdown:
    union = merged(each.interval for each in trace.collectives)
    hidden_s = None if trace.busy is None else overlap(union, trace.busy)
    return Breakdown(
        step_s=length([trace.step]),
        compute_s=None if trace.busy is None else length(trace.busy),
        comm_s=length(union),
        hidden_s=hidden_s,
        exposed_s=None if hidden_s is None else length(union) - hidden_s,
    )


def _of_clock(parts: PhaseSeconds) -> Breakdown:
    return Breakdown(
        step_s=sum(parts),
        compute_s=parts[COMPUTE],
        comm_s=None,
        hidden_s=None,
        exposed_s=parts[COMM] + parts[COMM_TRANSFER],
    )


def _difference(profiler: Breakdown, clock: Breakdown) -> Breakdown:
    def apart(name: str) -> float | None:
        ours, theirs = getattr(clock, name), getattr(profiler, name)
        return None if ours is None or theirs is None else ours - theirs

    return Breakdown.model_validate(
        {name: apart(name) for name in Breakdown.model_fields if name != "schema_version"}
    )
