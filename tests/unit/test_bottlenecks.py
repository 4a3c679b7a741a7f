"""Bottlenecks: a ceiling of the gain, and none without significance."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.efficiency import scaling_curves
from analysis.losses.advice import advice
from analysis.losses.bottlenecks import MATERIAL, STRAGGLERS, bottlenecks
from analysis.losses.compute_loss import CauseName
from analysis.losses.measured_options import MeasuredValue, measured_values
from analysis.losses.waterfall import PhaseTimes
from analysis.read.frames import load
from analysis.stats.verdicts import EQUIVALENCE_MARGIN
from disttrain.config.config_tree import config_fields
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep


def times(repeats: int = 3, ranks: int = 2, **phases: float) -> PhaseTimes:
    """Compute of 1 s, further phases as given; repeats differ by 1 %."""
    spread = 1 + 0.01 * (np.arange(repeats) - (repeats - 1) / 2)
    found = {name: np.zeros(repeats) for name in PHASES}
    found |= {name: value * spread for name, value in ({"compute_s": 1.0} | phases).items()}
    return PhaseTimes(np.sum(list(found.values()), axis=0), found, ranks, 8 * ranks, ranks)


def test_phases_are_ranked_by_the_gain_without_them() -> None:
    point = times(comm_transfer_s=0.5, input_s=0.25)
    first, second = bottlenecks(point, None)
    assert (first.phase, second.phase) == ("comm_transfer_s", "input_s")
    assert first.significant
    assert first.ceiling.value == pytest.approx(0.5 / 1.25)
    assert first.ceiling.low <= first.ceiling.value <= first.ceiling.high
    assert first.ceiling.repeats == 3


def test_a_share_at_the_bound_is_a_bottleneck_and_not_significant() -> None:
    phases = {name: np.zeros(2) for name in PHASES} | {"input_s": np.full(2, MATERIAL)}
    (found,) = bottlenecks(PhaseTimes(np.ones(2), phases, 2, 16, 2), None)
    assert (found.phase, found.share.low, found.significant) == ("input_s", MATERIAL, False)


def test_a_phase_that_is_the_whole_step_has_a_finite_ceiling() -> None:
    phases = {name: np.zeros(2) for name in PHASES} | {"input_s": np.ones(2)}
    (found,) = bottlenecks(PhaseTimes(np.ones(2), phases, 2, 16, 2), None)
    ceiling = found.ceiling
    assert (ceiling.low, ceiling.value, ceiling.high) == pytest.approx((999, 999, 999))


def test_only_compute_beyond_the_base_counts() -> None:
    base = times(ranks=1)
    assert bottlenecks(times(), base) == []
    (found,) = bottlenecks(times(compute_s=1.3), base)
    assert found.phase == "compute_s"
    assert found.ceiling.value == pytest.approx(0.3)


def test_nothing_is_significant_in_one_repeat_or_in_noise() -> None:
    (alone,) = bottlenecks(times(repeats=1, input_s=0.3), None)
    assert (alone.significant, alone.ceiling.low) == (False, None)
    noisy = {name: np.zeros(3) for name in PHASES} | {"input_s": np.array([0.0, 0.01, 0.4])}
    (found,) = bottlenecks(PhaseTimes(1 + noisy["input_s"], noisy, 2, 16, 2), None)
    assert not found.significant
    assert found.ceiling.low == 0


def test_steps_that_are_not_stationary_have_no_interval() -> None:
    base = times(ranks=1)
    found = bottlenecks(replace(times(input_s=0.3, compute_s=1.3), stationary=False), base)
    assert {each.phase for each in found} == {"input_s", "compute_s"}
    assert not any(each.significant or each.share.low is not None for each in found)
    assert {each.ceiling.basis for each in found} == {"not stationary"}


def test_named_stragglers_are_a_part_and_the_phases_keep_the_rest() -> None:
    """Of 0.3 s of waiting and 0.1 s of longer compute, stragglers cost 0.25 s and 0.04 s."""
    point, base = times(ranks=4, compute_s=1.1, comm_wait_s=0.3), times(ranks=1)
    spread = point.phases["comm_wait_s"] / 0.3
    cost_s = {"comm_wait_s": 0.25 * spread, "compute_s": 0.04 * spread}
    shares = {each.phase: each.share.value for each in bottlenecks(point, base, cost_s)}
    assert shares == pytest.approx(
        {STRAGGLERS: 0.29 / 1.4, "compute_s": 0.06 / 1.4, "comm_wait_s": 0.05 / 1.4}
    )


def test_options_that_are_set_are_not_advised() -> None:
    line = advice("compute_s", "ddp", ["shared_processors"], config={"resources.threads_per_rank": 1})
    assert "threads_per_rank" not in line
    assert "optim.fused" not in advice("optimizer_s", "ddp", config={"optim.fused": True})
    assert "Leave" not in advice("comm_wait_s", "ddp")
    assert "a smaller parallel.ddp.bucket_mb" in advice("comm_transfer_s", "ddp", messages=1)
    assert "a smaller" not in advice("comm_transfer_s", "ddp", messages=4)
    assert "Leave" in advice("comm_wait_s", "ddp", culprit=True)


def test_values_that_were_measured_as_slower_are_not_advised() -> None:
    key = "parallel.gradient_communication.scheme"
    slow, fast = MeasuredValue("bf16", 0.9), MeasuredValue("fp16", 1.2)
    line = advice("comm_transfer_s", "ddp", measured={key: [slow]})
    assert f"{key} (fp16, powersgd, hierarchical; measured here: bf16 has 0.90" in line
    assert key in advice("comm_transfer_s", "ddp", measured={key: [slow, fast]}, most=1)
    key = "parallel.strategy"
    line = advice("optimizer_s", "ddp", measured={key: [MeasuredValue("fsdp", 0.9)]})
    assert key not in line
    line = advice("optimizer_s", "ddp", measured={key: [MeasuredValue("fsdp", 1.1)]}, most=1)
    assert line.startswith("Update faster: dividing the update among ranks, parallel.strategy=fsdp (measured")
    key = "parallel.fsdp.reshard_after_forward"
    line = advice("comm_transfer_s", "fsdp", measured={key: [MeasuredValue("False", 0.9)]}, most=1)
    assert line == "Gather less or earlier: parallel.fsdp.forward_prefetch."


def test_values_that_were_measured_as_equivalent_stay_where_they_are() -> None:
    key = "parallel.gradient_communication.scheme"
    lowest = 1 / (1 + EQUIVALENCE_MARGIN)
    values = [MeasuredValue("bf16", 1.0), MeasuredValue("fp16", lowest)]
    assert (
        f"{key} (fp16, bf16, powersgd, hierarchical; measured here: bf16 has 1.00\N{MULTIPLICATION SIGN}, "
        "fp16 has 0.98\N{MULTIPLICATION SIGN} the throughput)"
    ) in advice("comm_transfer_s", "ddp", measured={key: values})
    for ratio in (lowest, 1.0, 1 + EQUIVALENCE_MARGIN / 2):
        line = advice("optimizer_s", "ddp", measured={"parallel.strategy": [MeasuredValue("fsdp", ratio)]})
        assert line.startswith("Update faster: the fused kernel")
        assert "parallel.strategy=fsdp (measured here" in line


def test_measured_values_are_those_of_one_other_option_at_the_same_size(tmp_path: Path) -> None:
    mb, rate = "parallel.ddp.bucket_mb", "optim.lr"
    axes: list[dict[str, Any]] = [
        {mb: 1, rate: 0.5},
        {mb: 4, rate: 0.5},
        {mb: 4, rate: 0.1},
        {mb: 1, rate: 0.1},
    ]
    sweeps = [fake_sweep(tmp_path, "one", axes=axes, nodes=(1, 2)), fake_sweep(tmp_path, "two", nodes=(1, 2))]
    curves = scaling_curves(load(sweeps))
    curve = next(each for each in curves if each.axes.get(mb) == 4 and each.axes.get(rate) == 0.5)
    point = curve.points[1]
    found = measured_values(curve, point, curves)
    assert {key: [each.value for each in values] for key, values in found.items()} == {
        mb: ["1"],
        rate: ["0.1"],
    }
    assert found[mb][0].ratio == pytest.approx(1.1)
    assert measured_values(curve, point, sorted(curves, key=lambda each: each.sweep != "two")) == found
    emulated = [replace(each, emulated=each is not curve) for each in curves]
    assert measured_values(emulated[curves.index(curve)], point, [*emulated, curve]) == {}
    lacking = replace(curve, axes={mb: 4})
    assert measured_values(curve, point, [lacking]) == {}, "no value to name"
    assert list(measured_values(lacking, point, [curve])) == [rate]


@pytest.mark.parametrize(
    ("line", "phase", "keywords"),
    [
        (
            "Leave the slow rank's node out of the next job.",
            "compute_s",
            {"causes": ["slow_ranks"], "culprit": True},
        ),
        ("Compare the ranks in the section of stragglers.", "compute_s", {"causes": ["slow_ranks"]}),
        (
            "Record a trace at both sizes and compare the kernels: profile.steps.",
            "compute_s",
            {"culprit": True},
        ),
        (
            "Compare the slow rank's data and work with those of the others: it is slow on several nodes.",
            "comm_wait_s",
            {"culprit": True, "several_nodes": True},
        ),
        (
            "Reduce work on the host: compiled layers; or rarer garbage collection; or rarer log lines; "
            "or a profiler trace of some steps.",
            "other_s",
            {"several_nodes": True, "own_program": False},
        ),
    ],
)
def test_advice_follows_the_cause_and_the_named_ranks(
    line: str, phase: str, keywords: dict[str, Any]
) -> None:
    assert advice(phase, "ddp", **keywords) == line


def test_waiting_between_stages_of_a_pipeline_is_its_bubble() -> None:
    assert advice("comm_wait_s", "pipeline") == advice("comm_transfer_s", "pipeline")
    assert advice("comm_wait_s", "pipeline").startswith("Make the bubble of the pipeline smaller")
    assert advice("input_s", "pipeline") == advice("input_s", "ddp")


def test_noise_around_nothing_is_rarely_significant() -> None:
    generator, count, wrong = np.random.default_rng(3), 600, 0
    for _ in range(count):
        phases = {name: np.zeros(3) for name in PHASES}
        phases["other_s"] = MATERIAL * (1 + 0.5 * generator.standard_normal(3))
        wrong += any(each.significant for each in bottlenecks(PhaseTimes(np.ones(3), phases, 2, 16, 2), None))
    assert wrong / count <= 0.04


@given(st.dictionaries(st.sampled_from(PHASES), st.floats(0, 10)), st.floats(0.1, 10))
@example({"input_s": 1.0, "comm_wait_s": 1.4e-142}, 2.0)  # the square of this variance is 0
def test_the_ceiling_is_the_gain_of_a_step_without_the_phase(found: dict[str, float], rest: float) -> None:
    point = times(repeats=2, **(found | {"compute_s": rest}))
    for each in bottlenecks(point, None):
        without = point.step_s - point.phases[each.phase]
        if np.all(without > 0.01 * point.step_s):
            assert 1 + each.ceiling.value == pytest.approx(float(np.mean(point.step_s) / np.mean(without)))


@pytest.mark.parametrize("strategy", ["DDP", "fsdp", "pipeline", None])
def test_advice_on_another_program_names_no_option_of_this_one(strategy: str | None) -> None:
    sections = {key.split(".")[0] for key, _ in config_fields()}
    causes: list[CauseName] = ["shared_processors", "smaller_batch", "slow_ranks", "lower_clocks", "unknown"]
    lines = [advice(phase, strategy, own_program=False) for phase in PHASES]
    lines += [advice("compute_s", strategy, [cause], own_program=False) for cause in causes]
    for line in lines:
        assert not {name.split(".")[0] for name in re.findall(r"\b[a-z_]+\.[a-z_]+", line)} & sections, line
    assert "bucket size" in advice("comm_transfer_s", "DDP", messages=1, own_program=False)
    assert "stages" in advice("comm_transfer_s", "Pipeline", own_program=False)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hsdp", "pipeline", "single", "dp", None])
def test_advice_names_options_that_exist(strategy: str | None) -> None:
    known = {key for key, _ in config_fields()}
    sections = {key.split(".")[0] for key in known if "." in key}
    causes: list[CauseName] = ["shared_processors", "smaller_batch", "slow_ranks", "lower_clocks", "unknown"]
    lines = [advice(phase, strategy) for phase in PHASES]
    lines += [advice("compute_s", strategy, [cause]) for cause in causes]
    for line in lines:
        named = re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+", line)
        named = [name for name in named if name.split(".")[0] in sections]
        assert set(named) <= known, line
    assert all("\n" not in line for line in lines)
    with_option = [line for line in lines if re.search(r"[a-z]\.[a-z_]", line)]
    assert len(with_option) >= 9
