"""Steps that no figure covers, over attempts that resume."""

from __future__ import annotations

from disttrain.telemetry.left_out_steps import LeftOutSteps


def test_warm_up_and_profiled_steps_so_far_are_left_out() -> None:
    left_out = LeftOutSteps(warmup_steps=3, profiled={2, 5, 9})
    assert left_out.ranges(0) == []
    assert (left_out.ranges(2), left_out.profiled_count(2)) == ([(1, 2)], 0)
    assert (left_out.ranges(6), left_out.profiled_count(6)) == ([(1, 3), (5, 5)], 1)
    assert left_out.ranges(10) == [(1, 3), (5, 5), (9, 9)]


def test_an_attempt_that_resumes_has_a_warm_up_of_its_own() -> None:
    left_out = LeftOutSteps(warmup_steps=3, profiled={15})
    left_out.resume(10)
    assert left_out.warm_step == 13
    assert left_out.ranges(20) == [(1, 10), (11, 13), (15, 15)]
    left_out.extend([(1, 3), (5, 5)], 1)
    assert left_out.ranges(20) == [(1, 3), (5, 5), (11, 13), (15, 15)]
    assert left_out.profiled_count(20) == 2


def test_without_a_warm_up_only_profiled_steps_are_left_out() -> None:
    assert LeftOutSteps(warmup_steps=0, profiled={4}).ranges(9) == [(4, 4)]
