"""The profiler's breakdown of a step beside the step clock's, and how far they are apart. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from disttrain.records import Breakdown, ProfiledStep, ProfileRecord
from disttrain.telemetry.phases import COMM, COMM_TRANSFER, COMPUTE, Parts
from disttrain.telemetry.trace import StepTrace, length, merged, overlap


def compare(rank: int, seen: Iterable[tuple[int, StepTrace]], own: Mapping[int, Parts]) -> ProfileRecord:
    """`seen` are the profiler's steps, `own` the seconds in each class that the step clock measured of them.

    The clock cannot see communication that compute hides, so its `comm_s` and `hidden_s` are null.
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
            )
        )
    return ProfileRecord(rank=rank, steps=steps)


def _of_trace(trace: StepTrace) -> Breakdown:
    union = merged(each.interval for each in trace.collectives)
    hidden = overlap(union, trace.compute)
    return Breakdown(
        step_s=length([trace.step]),
        compute_s=length(trace.compute),
        comm_s=length(union),
        hidden_s=hidden,
        exposed_s=length(union) - hidden,
    )


def _of_clock(parts: Parts) -> Breakdown:
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
