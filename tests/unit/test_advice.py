"""Advice: each option is given where its rules allow it, and never against a measurement."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.results.advice import TOPICS, Option, Situation, Topic, advice, measured_values, situation
from analysis.results.lost_time import STRAGGLERS, Bottleneck
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate
from analysis.study import make_study
from disttrain.config.config_tree import config_fields
from disttrain.records.steps import PHASES
from tests.support.studies import BUCKET, attempt_of, curves_of, run_of

SHARE = Estimate(0.2, 0.1, 0.3, 3)
ROWS = [(topic, option) for topic in TOPICS for option in topic.options]


def of(phase: str, *facts: str, rest: bool = False, most: int | None = None, **keywords: Any) -> str:
    at = Situation(frozenset(facts), **{"config": {"a": 1}, **keywords})
    return advice(Bottleneck(phase, SHARE, rest), at, most=most)


def of_row(topic: Topic, option: Option, **keywords: Any) -> str:
    """Advice where the topic and the option hold."""
    cause = topic.phases[-1]
    facts = {*topic.facts, *option.facts}
    if cause in (*PHASES, STRAGGLERS):
        return of(cause, *facts, **keywords)
    return of("compute_s", *facts, causes=[cause], **keywords)


@pytest.mark.parametrize(("topic", "option"), ROWS, ids=[f"{row.key}-{row.action}" for _, row in ROWS])
def test_each_option_is_named_unless_it_is_set_or_measured_as_no_faster(topic: Topic, option: Option) -> None:
    assert of_row(topic, option).startswith(topic.aim)
    assert f"{option.action} ({option.key}" in of_row(topic, option)
    other = of_row(topic, option, config={})
    assert option.action in other
    assert option.key not in other, "another program has no such option"
    for value in option.to:
        tried = {option.key: {value.capitalize(): Estimate(1.1, 0.98, 1.2, 3)}}
        for keywords in ({"measured": tried}, {"config": {option.key: value}}):
            assert value not in of_row(topic, option, **keywords).partition(option.key)[2].partition(")")[0]
    if not option.to:
        tried = {option.key: {"1000": Estimate(0.99, None, None, 1)}}
        assert option.action not in of_row(topic, option, measured=tried)
    for fact in option.facts:
        assert option.action not in of(topic.phases[0], *({*topic.facts, *option.facts} - {fact}))


def test_nothing_is_advised_on_transfer_where_waiting_was_not_told_apart() -> None:
    for facts in ((), ("sharded",)):
        assert of(TRANSFER, "waiting is known", *facts) != ""
        assert of(TRANSFER, *facts) == ""


@pytest.mark.parametrize(
    ("fact", "work"),
    [
        ("packed", "other runs of their jobs"),
        ("overlaps", "other runs were"),
        ("other load", "other processes"),
    ],
)
def test_other_work_on_the_nodes_is_the_reason_named_first(fact: str, work: str) -> None:
    for phase in (*PHASES, STRAGGLERS):
        line = of(phase, fact, "waiting is known", "slow rank")
        assert line.startswith(f"Measure these sizes alone first: {work}")


def test_what_was_measured_as_faster_comes_first() -> None:
    measured = {
        BUCKET: {
            "1": Estimate(0.8, 0.7, 0.9, 3),
            "2": Estimate(1.2, 0.9, 1.5, 3),
            "4": Estimate(1.2, 1.1, 1.3, 3),
            "8": Estimate(1.3, 1.1, 1.5, 3),
        }
    }
    facts = ("waiting is known", "several messages", "latency")
    times = "\N{MULTIPLICATION SIGN} the throughput)"
    lines = f"{BUCKET}=8 (measured here: 1.30{times}; or {BUCKET}=4 (measured here: 1.20{times}"
    assert of(TRANSFER, *facts, measured=measured, most=2) == f"Communicate less: {lines}."
    assert of(TRANSFER, *facts, most=1) == f"Communicate less: larger buckets for fewer messages ({BUCKET})."


@pytest.mark.parametrize(
    ("line", "phase", "facts", "causes"),
    [
        ("Leave the slow rank's node out", "compute_s", {"slow rank"}, ["slow ranks"]),
        ("Leave the slow rank's node out", WAIT, {"slow rank"}, []),
        ("Compare the slow rank's data", WAIT, {"slow rank", "slow on several nodes"}, []),
        ("Look for the reason of the lower clocks", "compute_s", {}, ["lower clocks"]),
        ("Record a trace", "compute_s", {"slow rank"}, []),
        ("Make the bubble", WAIT, {"pipeline"}, []),
        ("Make the bubble", TRANSFER, {"pipeline"}, []),
        ("Gather less", TRANSFER, {"sharded", "waiting is known"}, []),
        ("Communicate less", TRANSFER, {"waiting is known"}, []),
        ("Reduce work on the host", "other_s", {"slow rank"}, []),
        ("Give each rank processors", TRANSFER, {"shared processors"}, []),
        ("Give each rank processors", WAIT, {"shared processors"}, []),
    ],
)
def test_the_row_follows_the_cause_and_the_named_ranks(
    line: str, phase: str, facts: Any, causes: Any
) -> None:
    assert of(phase, *facts, causes=causes).startswith(line)


def test_the_rest_of_a_phase_is_not_advised_for_the_stragglers() -> None:
    for phase, causes in ((WAIT, []), ("compute_s", ["slow ranks", "smaller batch"])):
        assert "slow rank" in of(phase, "slow rank", causes=causes)
        assert "larger batch" in of(phase, "slow rank", causes=causes, rest=True)


def collectives(count: int, size: float, rate: float = 0.0) -> Any:
    """Profiled steps with so many messages of this size; with a rate, at this share of the slowest link."""
    return SimpleNamespace(
        count=count,
        bytes=count * size,
        bus_bytes_per_s=rate or None,
        hidden_s=1.0,
        total_s=2.0,
        collectives=[],
    )


LINKS = (attempt_of(link_rates={("a", "b"): 1.0, ("b", "a"): 2.0}, span=None),)


@pytest.mark.parametrize(
    ("metrics", "facts"),
    [
        ({}, {"bandwidth"}),
        ({"strategy": "hsdp"}, {"bandwidth", "sharded"}),
        ({"strategy": "pipeline"}, {"bandwidth", "pipeline"}),
        ({"oversubscribed": True}, {"bandwidth", "shared processors"}),
        ({"comm": collectives(1, 2**20, 0.5)}, {"bandwidth", "one message"}),
        ({"comm": collectives(1, 2**20, 0.49)}, {"latency", "one message"}),
        ({"comm": collectives(40, 2**20 - 1)}, {"latency", "several messages"}),
    ],
)
def test_facts_are_those_of_the_records(metrics: dict[str, Any], facts: set[str]) -> None:
    study = make_study([run_of(nodes, 2, metrics=metrics, attempts=LINKS) for nodes in (1, 2)])
    (curve,) = study.curves
    small, large = (situation(study, curve, point) for point in curve.points)
    assert small.facts == facts | {"waiting is known"}
    assert large.facts == small.facts | {"several ranks a node"}
    assert small.config["resources.nodes"] == 1


def test_another_program_has_no_options() -> None:
    for command, known in ((None, True), (["train.py"], False)):
        run = run_of()
        if command:
            run.record.config["command"] = command
        study = make_study([run])
        assert bool(situation(study, study.curves[0], study.curves[0].points[0]).config) == known


def test_options_exist_in_the_config() -> None:
    assert {option.key for _, option in ROWS} <= {key for key, _ in config_fields()} | {"profile.steps"}


def test_measured_values_are_those_of_one_other_option_at_the_same_size() -> None:
    rate = "optim.lr"
    groups: list[dict[str, Any]] = [
        {BUCKET: size, rate: lr} for size, lr in ((1, 0.5), (4, 0.5), (4, 0.1), (1, 0.1))
    ]
    curves = [*curves_of((1, 2), groups=groups), *curves_of((1, 2), sweep="t")]
    curve = next(each for each in curves if each.axes.get(BUCKET) == 4 and each.axes.get(rate) == 0.5)
    point = curve.points[1]
    values = measured_values(curve, point, curves)
    assert {key: [*found] for key, found in values.items()} == {BUCKET: ["1"], rate: ["0.1"]}
    assert values[BUCKET]["1"].value == pytest.approx(1.1)
    emulated = [replace(each, emulated=each is not curve) for each in curves]
    assert measured_values(emulated[curves.index(curve)], point, [*emulated, curve]) == {}
    lacking = replace(curve, axes={BUCKET: 4})
    assert measured_values(curve, point, [lacking]) == {}, "no value to name"
    assert list(measured_values(lacking, point, [curve])) == [rate]
