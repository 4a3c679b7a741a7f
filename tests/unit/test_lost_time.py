"""Waterfalls, bottlenecks and causes of lost compute, each from its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.read.run import Run
from analysis.report.sections.step_time import pop
from analysis.results.lost_time import (
    MATERIAL,
    NAMED,
    PERSISTENT,
    STRAGGLERS,
    TRANSIENT,
    Cause,
    Waterfall,
    at_largest,
    bottlenecks,
    compute_causes,
    largest_loss,
    waterfalls,
)
from analysis.results.phases import WAIT, Part, Phases, losses, partition
from analysis.stats.estimates import Estimate
from analysis.study import make_study
from disttrain.records.steps import PHASES
from tests.support.straggler_records import delays, generate, steps_of
from tests.support.studies import BUCKET, attempt_of, run_of, sweep_of


def times(repeats: int = 3, **phases: float) -> Phases:
    """Compute of 1 s, further phases as given; repeats differ by 1 %."""
    spread = 1 + 0.01 * (np.arange(repeats) - (repeats - 1) / 2)
    seconds = {name: value * spread for name, value in ({"compute_s": 1.0} | phases).items()}
    return partition(np.sum([*seconds.values()], axis=0), seconds)


def inputs(*input_s: float) -> Phases:
    """Steps of 1 s with this input time."""
    return partition(np.ones(len(input_s)), {"input_s": input_s, "compute_s": 1 - np.array(input_s)})


@pytest.mark.parametrize(
    ("point", "base", "shares", "significant"),
    [
        (times(input_s=0.25, checkpoint_s=0.5), None, {"checkpoint_s": 2 / 7, "input_s": 1 / 7}, 2),
        (inputs(MATERIAL, MATERIAL), None, {"input_s": MATERIAL}, 0),  # at the bound
        (inputs(0.0099, 0.0099), None, {}, 0),
        (times(), times(), {}, 0),
        (times(compute_s=1.3), times(), {"compute_s": 0.3 / 1.3}, 1),  # only compute beyond the base
        (times(compute_s=1.3, optimizer_s=1.0), None, {}, 0),
        (times(1, input_s=0.3), None, {"input_s": 0.3 / 1.3}, 0),  # one repeat
        (inputs(0.0, 0.01, 0.4), None, {"input_s": 0.41 / 3}, 0),  # noise
        (replace(times(input_s=0.3), basis="not stationary"), None, {"input_s": 0.3 / 1.3}, 0),
    ],
)  # fmt: skip
def test_phases_are_ranked_by_the_gain_without_them(point, base, shares, significant) -> None:
    found = bottlenecks(point, base)
    assert [(each.phase, each.share.value) for each in found] == [
        (phase, pytest.approx(share)) for phase, share in shares.items()
    ]
    assert sum(each.significant for each in found) == significant
    assert {each.ceiling.basis for each in found} <= {point.basis}


@given(st.dictionaries(st.sampled_from(PHASES), st.floats(0, 10)), st.floats(0.1, 10))
@example({"input_s": 1.0, "comm_wait_s": 1.4e-142}, 2.0)  # the square of this variance is 0
def test_the_ceiling_is_the_gain_of_a_step_without_the_phase(phases: dict[str, float], rest: float) -> None:
    point = times(repeats=2, **(phases | {"compute_s": rest}))
    for each in bottlenecks(point, None):
        without = np.array(point.step_s) - point.array(each.phase)
        if np.all(without > 0.01 * np.array(point.step_s)):
            assert 1 + each.ceiling.value == pytest.approx(float(np.mean(point.step_s) / np.mean(without)))
    (whole,) = bottlenecks(inputs(1.0, 1.0), None)
    assert whole.ceiling.value == pytest.approx(999), "it is finite"


def test_named_stragglers_are_a_part_and_the_phases_keep_the_rest() -> None:
    """Of 0.3 s of waiting and 0.1 s of longer compute, stragglers cost 0.25 s and 0.04 s."""
    point = times(compute_s=1.1, comm_wait_s=0.3)
    spread = point.array(WAIT) / 0.3
    found = bottlenecks(point, times(), 1.0, {WAIT: 0.25 * spread, "compute_s": 0.04 * spread})
    shares = {STRAGGLERS: 0.29 / 1.4, "compute_s": 0.06 / 1.4, WAIT: 0.05 / 1.4}
    assert {each.phase: each.share.value for each in found} == pytest.approx(shares)
    assert {each.phase for each in found if each.rest} == {"compute_s", WAIT}


def test_noise_around_nothing_is_rarely_significant() -> None:
    generator, count = np.random.default_rng(3), 400
    shares = MATERIAL * (1 + 0.5 * generator.standard_normal((count, 3)))
    wrong = sum(any(each.significant for each in bottlenecks(inputs(*share), None)) for share in shares)
    assert wrong / count <= 0.04


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ([(0.3, 0.0), (0.2, 0.1), (0.1, 0.05)], 1),  # the interval of the first one contains 0
        ([(0.1, None), (0.2, None)], 1),
        ([(NAMED, 0.001)], 0),
        ([(0.009, 0.001)], None),
        ([], None),
    ],
)
def test_the_largest_loss_is_settled_and_large_enough(shares, named) -> None:
    parts = tuple(
        Part(str(number), Estimate(0.1, None, None, 1), Estimate(value, low, low and 0.5, 3))
        for number, (value, low) in enumerate(shares)
    )
    loss = largest_loss(Waterfall(None, None, None, (), parts))
    assert (loss.name if loss else None) == (None if named is None else str(named))


def test_a_gain_is_negative_and_small_parts_are_not_shown() -> None:
    base = partition([1.0] * 2, {"compute_s": [0.8] * 2, "other_s": [0.2] * 2})
    for wait_s, shown in ((0.001, ["compute_s", "other_s", WAIT]), (0.0009, ["compute_s", "other_s"])):
        point = partition(
            [1.0] * 2, {"compute_s": [0.5] * 2, "other_s": [0.5 - wait_s] * 2, WAIT: [wait_s] * 2}
        )
        parts = losses(point, base, 1.0)
        assert parts[0].seconds.value == pytest.approx(-0.3)
        assert [part.name for part in Waterfall(None, None, None, parts, ()).shown] == shown


def test_sizes_have_waterfalls_where_they_and_the_base_of_their_curve_were_measured() -> None:
    study = make_study(sweep_of((1, 2, 4), groups=[{BUCKET: 4}, {BUCKET: 32}]))
    fast, slow = study.curves

    def shown(curve: Any) -> list[tuple[str, int]]:
        found = waterfalls(replace(study, curves=[curve, slow]))
        return [(each.curve.label, each.point.size) for each in found]

    always = [(slow.label, 2), (slow.label, 4)]
    assert shown(fast) == [(fast.label, 2), (fast.label, 4), *always]
    for change in ({"is_base": False}, {"phases": replace(fast.points[0].phases, seconds={})}):
        assert shown(replace(fast, points=(replace(fast.points[0], **change), *fast.points[1:]))) == always
    each = waterfalls(study)[0]
    assert (each.ideal_s, each.actual_s) == pytest.approx((each.base.step_s.value, each.point.step_s.value))


def with_delays(
    added_s: np.ndarray, hosts: dict[int, str] | None = None, repeat: int = 0, batch: int = 8, **metrics: Any
) -> Run:
    """A run of these ranks, two a node; `hosts`: other names of some nodes."""
    rows = generate(added_s, ranks_per_node=2, seed=repeat)
    for node, host in (hosts or {}).items():
        rows.loc[rows["rank"] // 2 == node, "host"] = host
    means = {name: rows[name].mean() for name in PHASES}
    values = {"composition": means, "measured_steps": added_s.shape[1], **metrics}
    nodes = len(added_s) // 2
    return run_of(
        nodes, 2, repeat, mean_s=rows["step_s"].mean(), batch=batch, metrics=values, steps=steps_of(rows)
    )


def test_waiting_is_for_ranks_that_are_always_slow_or_late_in_turn() -> None:
    turns = np.zeros((4, 60))
    turns[np.arange(60) % 4, np.arange(60)] = 0.05
    always = delays(4, 60, slow=[1], slow_s=0.05)
    for added_s, name in ((turns, TRANSIENT), (always, PERSISTENT)):
        (shown,) = waterfalls(make_study([run_of(), with_delays(added_s)]))
        waiting = {
            part.name: part.seconds.value for part in shown.parts if part.name in (PERSISTENT, TRANSIENT)
        }
        assert max(waiting, key=waiting.__getitem__) == name
        assert sum(waiting.values()) == pytest.approx(0.0375, rel=0.1)
        assert WAIT in [part.name for part in shown.whole]


def causes_of(base: Run, *repeats: Run) -> list[Cause]:
    """Causes of compute that the size of these repeats loses."""
    (curve,) = (study := make_study([base, *repeats])).curves
    return compute_causes(study, curve, curve.points[-1])


@pytest.mark.parametrize(
    ("slow", "ranks"),
    [
        ([{2: "n2"}] * 3, 2),
        ([{1: "n1", 2: "n2"}] * 3, 4),
        ([{seed: "n2"} for seed in range(3)], 2),  # a node with other ranks in each repeat
    ],
)
def test_slow_nodes_have_the_size_of_their_delay_wherever_they_are(slow, ranks) -> None:
    repeats = [
        with_delays(delays(8, 60, [2 * at + of for at in nodes for of in (0, 1)], 0.05, 0.002), nodes, seed)
        for seed, nodes in enumerate(slow)
    ]
    first, *_ = causes_of(with_delays(np.zeros((2, 60))), *repeats)
    assert [*first.evidence] == ["slow ranks"]
    assert first.seconds == pytest.approx(0.05 * ranks / 8, rel=0.05)


def test_stragglers_cost_what_they_exceed_those_of_the_base_in_their_own_steps() -> None:
    """The base has one, for half of the work of a step; the point has two ranks, for half of the steps."""
    base = with_delays(delays(4, 60, [1], 0.005, 0.0005))
    point = with_delays(delays(8, 60, [4, 5], 0.08, 0.0005, between=(31, 60)) + 0.15, batch=16)
    first, *_ = causes_of(base, point)
    assert first.seconds == pytest.approx(0.08 * 2 / 8 / 2 - 2 * 0.005 / 4, rel=0.05)
    assert at_largest(study := make_study([base, point]), study.curves[0])[0].phase == STRAGGLERS


def test_stages_of_a_pipeline_are_no_stragglers() -> None:
    for strategy, count in (("ddp", 1), ("pipeline", 0)):
        runs = [with_delays(delays(ranks, 60, [1], 0.05), strategy=strategy) for ranks in (2, 8)]
        study = make_study(runs)
        assert len(study.stragglers) == 2 * count
        assert (pop(study) is None) == (strategy == "pipeline")


def size(nodes: int, compute_s: float, batch: int = 8, clock: float | None = None, **options: Any) -> Run:
    metrics = {"composition": {"compute_s": compute_s}, "gpu": {"sm_clock_ratio_mean": clock}}
    host = options.pop("host", f"n{nodes}")
    attempts = (attempt_of(host, one_machine=options.pop("one_machine", False)),)
    return run_of(nodes, mean_s=compute_s, batch=batch, metrics=metrics | options, attempts=attempts)


@pytest.mark.parametrize(
    ("base", "point", "causes"),
    [
        ({}, {"compute_s": 1.009}, []),  # below one percent
        ({}, {"compute_s": 0.8}, []),
        ({}, {}, [({"unknown"}, 0.2)]),
        ({"clock": 0.9}, {"clock": 0.75}, [({"lower clocks"}, 0.2)]),
        ({"clock": 0.9}, {"clock": 0.855}, [({"unknown"}, 0.14), ({"lower clocks"}, 0.06)]),
        ({"clock": 0.9}, {"clock": 0.45}, [({"lower clocks"}, 0.6), ({"unknown"}, -0.4)]),
        ({"clock": 0.9}, {"clock": 0.89}, [({"unknown"}, 0.2)]),  # small
        ({"clock": 0.9}, {}, [({"unknown"}, 0.2)]),
        ({}, {"oversubscribed": True}, [({"shared processors"}, 0.2)]),
        ({"oversubscribed": True}, {"oversubscribed": True}, [({"unknown"}, 0.2)]),
        (
            {"oversubscribed": True},
            {"oversubscribed": True, "one_machine": True},
            [({"shared processors"}, 0.2)],
        ),
        ({"emulated": True}, {"oversubscribed": True, "emulated": True}, [({"unknown"}, 0.2)]),
        ({}, {"batch": 4, "compute_s": 0.7}, [({"smaller batch"}, 0.2)]),
        (
            {},
            {"batch": 4, "compute_s": 0.7, "oversubscribed": True},
            [({"shared processors", "smaller batch"}, 0.2)],
        ),
        ({}, {"oversubscribed": True, "host": "n1"}, [({"overlaps"}, 0.2)]),
    ],
)
def test_causes_of_lost_compute_have_their_evidence_and_sum_to_the_loss(base, point, causes) -> None:
    runs = size(1, 1.0, **base), size(2, **{"compute_s": 1.2, **point})
    found = [({*cause.evidence}, cause.seconds) for cause in causes_of(*runs)]
    assert found == [(evidence, pytest.approx(seconds)) for evidence, seconds in causes]
