"""Advice: each option is given where its rules allow it, and never against a measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.read.load import load_runs
from analysis.results.advice import (
    AIMS,
    LESS,
    MORE,
    OPTIONS,
    MeasuredValue,
    Option,
    Situation,
    advice,
    measured_values,
    topic_of,
)
from analysis.results.bottlenecks import STRAGGLERS, Bottleneck
from analysis.results.curves import scaling_curves
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from disttrain.config.config_tree import config_fields
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep

BUCKET, SCHEME = "parallel.ddp.bucket_mb", "parallel.gradient_communication.scheme"
MIB = 2**20
ONE_LARGE = Situation(strategy="ddp", messages=1, message_bytes=25 * MIB, config={BUCKET: 25})
MANY_SMALL = replace(ONE_LARGE, messages=40, message_bytes=MIB - 1)


def of(phase: str, at: Situation, *, rest: bool = False, most: int | None = None) -> str:
    return advice(Bottleneck(phase, Estimate(0.2, 0.1, 0.3, 3), rest), at, most=most)


def allowed(topic: str, option: Option) -> tuple[str, Situation]:
    """A phase and a situation in which an option is advised."""
    phase = {"gradients": TRANSFER, "shards": TRANSFER, "bubble": TRANSFER}.get(topic, topic)
    strategy = {"shards": "fsdp", "bubble": "pipeline"}.get(topic, "ddp")
    small = option.key == BUCKET and option.values == MORE
    at = replace(MANY_SMALL if small else ONE_LARGE, strategy=strategy)
    if phase in ("shared_processors", "smaller_batch", "unknown"):
        return "compute_s", replace(at, causes=[phase])
    return phase, at


ROWS = [(topic, option) for topic, options in OPTIONS.items() for option in options]


@pytest.mark.parametrize(("topic", "option"), ROWS, ids=[f"{topic}-{row.setting}" for topic, row in ROWS])
def test_each_option_is_named_unless_it_is_set_or_measured_as_no_faster(topic: str, option: Option) -> None:
    phase, at = allowed(topic, option)
    other = replace(at, own_program=False)
    assert option.setting in of(phase, other)
    assert option.key in of(phase, at)
    for value in option.values if option.values not in (MORE, LESS) else ():
        tried = {option.key: [MeasuredValue(value.capitalize(), Estimate(1.1, 0.98, 1.2, 3))]}
        assert f"={value}" not in of(phase, replace(at, measured=tried))
        assert f"={value}" not in of(phase, replace(at, config={option.key: value}))
    if option.values in (MORE, LESS):
        value = "1000" if option.values == MORE else "0.001"
        tried = {option.key: [MeasuredValue(value, Estimate(0.99, None, None, 1))]}
        known = replace(other, config={option.key: 1}, measured=tried)
        assert option.setting not in of(phase, known)


def forbidding(rule: str) -> dict[str, Any]:
    return {
        "latency_dominates": {"message_bytes": MIB - 1.0},
        "bandwidth_dominates": {"message_bytes": float(MIB)},
        "not_several_messages": {"messages": 1},
        "not_one_message": {"messages": 2},
        "one_rank_a_node": {"config": {"resources.gpus_per_node": 1}},
    }[rule]


RULES = [(topic, option, rule) for topic, option in ROWS for rule in option.unless]


@pytest.mark.parametrize(
    ("topic", "option", "rule"), RULES, ids=[f"{row.setting}-{rule.__name__}" for _, row, rule in RULES]
)
def test_each_rule_forbids_its_option(topic: str, option: Option, rule: Any) -> None:
    phase, at = allowed(topic, option)
    other = replace(at, own_program=False)
    assert option.setting in of(phase, other)
    assert option.setting not in of(phase, replace(other, **forbidding(rule.__name__)))


def test_latency_is_also_a_low_share_of_the_measured_rate_of_the_links() -> None:
    assert "a smaller" in of(TRANSFER, ONE_LARGE)
    assert "a smaller" not in of(TRANSFER, replace(ONE_LARGE, rate_share=0.49))
    assert "a smaller" in of(TRANSFER, replace(ONE_LARGE, rate_share=0.5))
    assert of(TRANSFER, MANY_SMALL, most=1) == f"Communicate less: a larger {BUCKET} for fewer messages."


def test_nothing_is_advised_on_transfer_where_waiting_was_not_told_apart() -> None:
    for strategy in ("ddp", "fsdp"):
        assert of(TRANSFER, replace(ONE_LARGE, strategy=strategy)) != ""
        assert of(TRANSFER, replace(ONE_LARGE, strategy=strategy, divides_waiting=False)) == ""


def test_other_work_on_the_nodes_is_the_reason_named_first() -> None:
    at = replace(ONE_LARGE, disturbed="other runs were at work on their nodes")
    for phase in (*PHASES, STRAGGLERS):
        assert of(phase, at) == "Measure these sizes alone first: other runs were at work on their nodes."


def test_what_was_measured_as_faster_comes_first() -> None:
    fast, slow = (
        MeasuredValue(*each)
        for each in (("4", Estimate(1.2, 1.1, 1.3, 3)), ("1", Estimate(0.8, 0.7, 0.9, 3)))
    )
    line = of(TRANSFER, replace(MANY_SMALL, measured={BUCKET: [slow, fast]}), most=1)
    assert (
        line == f"Communicate less: {BUCKET}=4 (measured here: 1.20\N{MULTIPLICATION SIGN} the throughput)."
    )
    assert fast.faster
    assert not slow.faster
    assert not MeasuredValue("2", Estimate(1.2, 0.9, 1.5, 3)).faster


@pytest.mark.parametrize(
    ("topic", "phase", "keywords"),
    [
        (STRAGGLERS, "compute_s", {"causes": ["slow_ranks"], "culprit": True}),
        ("slow_ranks", "compute_s", {"causes": ["slow_ranks"]}),
        ("lower_clocks", "compute_s", {"causes": ["lower_clocks"]}),
        ("unknown", "compute_s", {"culprit": True}),
        ("own work", WAIT, {"culprit": True, "several_nodes": True}),
        (STRAGGLERS, WAIT, {"culprit": True}),
        ("bubble", WAIT, {"strategy": "pipeline"}),
        ("shards", TRANSFER, {"strategy": "hsdp"}),
        ("gradients", TRANSFER, {"strategy": "dp"}),
        ("other_s", "other_s", {"culprit": True}),
        ("shared_processors", TRANSFER, {"shared_processors": True}),
        ("shared_processors", WAIT, {"shared_processors": True}),
    ],
)
def test_the_topic_follows_the_cause_and_the_named_ranks(topic: str, phase: str, keywords: Any) -> None:
    part = Bottleneck(phase, Estimate(0.2, 0.1, 0.3, 3))
    assert topic_of(part, Situation(**keywords)) == topic
    assert advice(part, Situation(**keywords)).startswith(AIMS[topic])


def test_the_rest_of_a_phase_is_not_advised_for_the_stragglers() -> None:
    at = Situation(causes=["slow_ranks", "smaller_batch"], culprit=True)
    assert "slow rank" in of(WAIT, at)
    assert "slow rank" not in of(WAIT, at, rest=True)
    assert of("compute_s", at, rest=True).startswith(AIMS["smaller_batch"])


def test_options_exist_in_the_config() -> None:
    assert {option.key for _, option in ROWS} <= {key for key, _ in config_fields()} | {"profile.steps"}


def test_measured_values_are_those_of_one_other_option_at_the_same_size(tmp_path: Path) -> None:
    rate = "optim.lr"
    axes: list[dict[str, Any]] = [
        {BUCKET: 1, rate: 0.5},
        {BUCKET: 4, rate: 0.5},
        {BUCKET: 4, rate: 0.1},
        {BUCKET: 1, rate: 0.1},
    ]
    sweeps = [fake_sweep(tmp_path, "one", axes=axes, nodes=(1, 2)), fake_sweep(tmp_path, "two", nodes=(1, 2))]
    curves = scaling_curves(load_runs(sweeps))
    curve = next(each for each in curves if each.axes.get(BUCKET) == 4 and each.axes.get(rate) == 0.5)
    point = curve.points[1]
    values = measured_values(curve, point, curves)
    assert {key: [each.value for each in found] for key, found in values.items()} == {
        BUCKET: ["1"],
        rate: ["0.1"],
    }
    assert values[BUCKET][0].ratio.value == pytest.approx(1.1)
    emulated = [replace(each, emulated=each is not curve) for each in curves]
    assert measured_values(emulated[curves.index(curve)], point, [*emulated, curve]) == {}
    lacking = replace(curve, axes={BUCKET: 4})
    assert measured_values(curve, point, [lacking]) == {}, "no value to name"
    assert list(measured_values(lacking, point, [curve])) == [rate]
