"""Aggregates of steps."""

from __future__ import annotations

import math

from disttrain.telemetry.step_aggregate import StepAccumulator


def test_the_loss_is_the_mean_of_the_recorded_ones() -> None:
    aggregate = StepAccumulator()
    for step, loss in enumerate((math.nan, 1.0, math.nan, 3.0), 1):
        aggregate.add(step, 0.0, [1.0], loss, 0.1, 0.5)
    record = aggregate.as_record({}, 1)
    assert (record["loss"], record["gap_s"]) == (2.0, 2.0)


def test_without_a_recorded_loss_there_is_none() -> None:
    aggregate = StepAccumulator()
    aggregate.add(1, 0.0, [1.0], math.nan, 0.1, 0.5)
    assert aggregate.as_record({}, 1)["loss"] is None
