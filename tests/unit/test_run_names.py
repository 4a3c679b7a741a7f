"""Names of the runs of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from sweeps.expand import ExistingSweep, expand
from sweeps.overrides import parse_flag
from sweeps.run_names import readable_names, unique_names
from tests.support.sweep_plans import draft, expanded, run_names


def names_of(*axes: dict[str, Any]) -> list[str]:
    """Names of runs on one node with these axes."""
    config = expanded(draft()).runs[0].config
    return readable_names((config, each, 0) for each in axes)


def test_names_are_readable() -> None:
    plan = expanded(draft(), "optim.lr=0.1,1e-4", "model.hidden=[32, 16]", nodes="1 2")
    assert run_names(plan) == ["n1-lr0.1", "n1-lr1e-4", "n2-lr0.1", "n2-lr1e-4"]


def test_gpus_per_node_are_named_where_they_differ_from_1() -> None:
    assert run_names(expanded(draft(resources={"gpus_per_node": 4}), nodes="2")) == ["n2-g4"]
    swept = expand(draft(), [parse_flag("--gpus-per-node", "resources.gpus_per_node", ["1", "2"])], name="s")
    assert run_names(swept) == ["n1-g1", "n1-g2"]


def test_repeats_are_numbered_where_there_are_several() -> None:
    first = expanded(draft(), nodes="1")
    more = ExistingSweep({run.config_key: run.name for run in first.runs})
    repeated = draft(sweep={"repeats": 3})
    assert run_names(expanded(repeated)) == ["n1-r0", "n1-r1", "n1-r2"]
    assert run_names(expanded(repeated, existing=more)) == ["n1", "n1-r1", "n1-r2"]


def test_runs_that_would_share_a_name_get_their_key() -> None:
    plan = expanded(draft(), "job.env.A=a+b,a b")
    assert run_names(plan) == [f"n1-Aa-b-{run.config_key[:6]}" for run in plan.runs]


def test_paths_are_numbered_and_fields_outside_the_run_key_are_left_out() -> None:
    files = {"data": {"kind": "text"}, "model": {"kind": "gpt"}}
    assert run_names(expanded(draft(**files), "data.path=/some where/a")) == ["n1"]
    assert run_names(expanded(draft(**files), "data.path=/some where/a,../b,null")) == [
        "n1-path0",
        "n1-path1",
        "n1-path2",
    ]
    assert run_names(expanded(draft(), "job.time_limit_min=30", "job.env.OUT=/scratch/me")) == ["n1"]


@pytest.mark.parametrize(
    "value", ["/data", "a/b", r"C:\data", "~", "data.bin", "v2.txt", ["a", "b/c"], {"a": "/b"}]
)
def test_paths_and_file_names_are_in_no_name(value: Any) -> None:
    assert names_of({"data.path": value}) == ["n1"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        ([1, 2], "1-2"),
        (["a", ["b", None]], "a-b-null"),
        ("-x-", "x"),
        ("XaZ_9.9", "XaZ_9.9"),
        ("a+b c", "a-b-c"),
        ("a" * 50, "a" * 40),
        (0.1, "0.1"),
        (0.01, "0.01"),
        (0.001, "1e-3"),
        (0.00025, "0.00025"),
        (3e-5, "3e-5"),
        (1e10, "1e10"),
        (10.0, "10"),
        (1e6, "1e6"),
        (0.1234567891, "0.1234567891"),
        (128, "128"),
    ],
)
def test_values_in_names(value: Any, shown: str) -> None:
    assert names_of({"data.path": value}) == [f"n1-path{shown}"]


def test_a_name_is_not_too_long_for_a_file_and_keeps_its_repeat() -> None:
    config = expanded(draft()).runs[0].config
    (name,) = readable_names([(config, {f"data.{key}": "x" * 40 for key in "abcde"}, 12)])
    assert len(name) == 160 + len("-r12")
    assert name.endswith("x-r12")


def test_kinds_and_strategies_need_no_key_and_keys_that_end_alike_have_more_parts() -> None:
    axes = {"model.kind": "mlp", "parallel.strategy": "fsdp", "train.local_batch_size": 8}
    assert names_of(axes) == ["n1-mlp-fsdp-b8"]
    assert names_of({"optim.name": "sgd", "a.size": 1, "b.size": 2}) == ["n1-namesgd-a.size1-b.size2"]
    assert names_of({"lr": 1, "optim.lr": 2}) == ["n1-lr1-optim.lr2"]


def test_an_existing_run_keeps_its_name_and_new_ones_avoid_it() -> None:
    assert unique_names([("a", "1"), ("a", "2"), ("b", "3")], {"2": "a", "9": "b"}) == ["a-1", "a", "b-3"]


@pytest.mark.parametrize("unreadable", ["a", "a-1"])
def test_the_name_of_an_unreadable_run_is_not_given_to_a_second_run(unreadable: str) -> None:
    assert unique_names([("a", "1"), ("b", "3")], {}, {unreadable}) == [unreadable, "b"]


def test_two_runs_never_have_the_name_of_one_unreadable_run() -> None:
    assert unique_names([("a", "1"), ("a", "2")], {}, {"a"}) == ["a-1", "a-2"]


def test_names_stay_where_values_are_added_at_the_end_of_an_axis() -> None:
    files = {"data": {"kind": "text"}, "model": {"kind": "gpt"}}
    first = expanded(draft(**files), "data.path=/a", "optim.lr=0.1")
    names = {run.config_key: f"own-{run.name}" for run in first.runs}  # of `--run-name`
    longer = expanded(draft(**files), "data.path=/a,/b", "optim.lr=0.1,0.2", existing=ExistingSweep(names))
    assert run_names(longer)[0] == "own-n1"
    assert run_names(longer)[1:] == ["n1-path0-lr0.2", "n1-path1-lr0.1", "n1-path1-lr0.2"]
