"""Names of the runs of a sweep."""

from __future__ import annotations

import pytest

from sweeps.expand import ExistingSweep, expand
from sweeps.overrides import parse_flag, parse_set
from sweeps.run_names import readable_name, unique_names
from tests.support.sweep_plans import draft, expanded, run_names


def test_names_are_readable() -> None:
    plan = expanded(draft(), "optim.lr=0.1,1e-4", "model.hidden=[32, 16]", nodes="1 2")
    assert run_names(plan) == [
        "n1-single-b8-lr0.1-r0",
        "n1-single-b8-lr0.0001-r0",
        "n2-auto-b8-lr0.1-r0",
        "n2-auto-b8-lr0.0001-r0",
    ]


def test_gpus_per_node_are_named_where_they_differ_from_1() -> None:
    plain = expanded(draft(resources={"gpus_per_node": 4}), nodes="2")
    assert run_names(plain) == ["n2-g4-auto-b8-r0"]
    assert run_names(expanded(draft(resources={"gpus_per_node": 2}))) == ["n1-g2-auto-b8-r0"]
    swept = expand(draft(), [parse_flag("--gpus-per-node", "resources.gpus_per_node", ["1", "2"])], name="s")
    assert run_names(swept) == ["n1-g1-single-b8-r0", "n1-g2-auto-b8-r0"]


def test_runs_that_would_share_a_name_get_their_key() -> None:
    ddp_alone = draft(parallel={"gradient_communication": {"scheme": "fp16"}})
    plan = expanded(ddp_alone, "parallel.strategy=auto,ddp", nodes="2")
    assert run_names(plan) == [f"n2-ddp-b8-r0-{run.config_key[:6]}" for run in plan.runs]


def test_values_are_made_safe_for_a_file_name() -> None:
    plan = expanded(draft(data={"kind": "text"}, model={"kind": "gpt"}), "data.path=/some where/a,../b,null")
    assert run_names(plan) == [
        "n1-single-b8-pathsome-where-a-r0",
        "n1-single-b8-path..-b-r0",
        "n1-single-b8-pathnull-r0",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("true", "true"),
        ("[1, 2]", "1-2"),
        ("[a, [b, null]]", "a-b-null"),
        ("-x-", "x"),
        ("XaZ_9.z", "XaZ_9.z"),
        ("a+b c", "a-b-c"),
        ("a" * 50, "a" * 40),
    ],
)
def test_values_in_names(value: str, shown: str) -> None:
    axes = parse_set(f"data.path={value}").values[0]
    config = expanded(draft()).runs[0].config
    assert readable_name(config, {"data.path": axes}, 3) == f"n1-single-b8-path{shown}-r3"


def test_a_name_is_not_too_long_for_a_file_and_keeps_its_repeat() -> None:
    config = expanded(draft()).runs[0].config
    name = readable_name(config, {f"data.{key}": "x" * 40 for key in "abcde"}, 12)
    assert len(name) == 160 + len("-r12")
    assert name.endswith("x-r12")


def test_of_an_axis_of_kinds_only_the_value_is_named() -> None:
    config = expanded(draft()).runs[0].config
    axes = {"model.kind": "mlp", "optim.name": "sgd", "parallel.ddp.bucket_mb": 5}
    assert readable_name(config, axes, 0) == "n1-single-b8-mlp-namesgd-bucket_mb5-r0"


def test_an_existing_run_keeps_its_name_and_new_ones_avoid_it() -> None:
    assert unique_names([("a", "1"), ("a", "2"), ("b", "3")], {"2": "a", "9": "b"}) == ["a-1", "a", "b-3"]


def test_a_name_has_the_strategy_where_it_is_known_before_the_job() -> None:
    assert run_names(expanded(draft(), nodes="2")) == ["n2-auto-b8-r0"]
    assert run_names(expanded(draft(parallel={"strategy": "fsdp"}), nodes="2")) == ["n2-fsdp-b8-r0"]
    offered = {"gradient_communication": {"scheme": "fp16"}}  # which sharded models do not have
    assert run_names(expanded(draft(parallel=offered), nodes="2")) == ["n2-ddp-b8-r0"]
    emulated = draft(model={"kind": "emulated"}, resources={"gpus_per_node": 2})
    assert run_names(expanded(emulated, nodes="1")) == ["n1-g2-ddp-b8-r0"]


def test_a_run_of_an_earlier_version_keeps_its_name() -> None:
    [run] = expanded(draft(), nodes="2").runs
    readable = ExistingSweep(names={run.config_key: "n2-ddp-b8-r0"})
    unreadable = ExistingSweep(unreadable=frozenset({"n2-ddp-b8-r0"}))
    for existing in (readable, unreadable):
        assert run_names(expanded(draft(), nodes="2", existing=existing)) == ["n2-ddp-b8-r0"]


@pytest.mark.parametrize("unreadable", ["a", "a-1"])
def test_the_name_of_an_unreadable_run_is_not_given_to_a_second_run(unreadable: str) -> None:
    assert unique_names([("a", "1"), ("b", "3")], {}, {unreadable}) == [unreadable, "b"]


@pytest.mark.parametrize("unreadable", ["n2-auto-b8-r0", "n2-ddp-b8-r0"])
def test_two_runs_never_have_the_name_of_one_unreadable_run(unreadable: str) -> None:
    wanted = [("n2-auto-b8-r0", "1"), ("n2-auto-b8-r0", "2")]
    assert unique_names(wanted, {}, {unreadable}) == ["n2-auto-b8-r0-1", "n2-auto-b8-r0-2"]
    assert unique_names(wanted, {}, {"n2-ddp-b8-r0-2"}) == ["n2-auto-b8-r0-1", "n2-ddp-b8-r0-2"]


def test_the_earlier_name_of_a_run_is_not_given_if_another_run_has_it() -> None:
    wanted = [("n2-auto-b8-r0", "1"), ("n2-ddp-b8-r0", "2")]
    assert unique_names(wanted, {}, {"n2-ddp-b8-r0"}) == ["n2-auto-b8-r0", "n2-ddp-b8-r0"]
