"""Expansion of a sweep file and the command line into runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrain.config.parsing import Draft, load
from disttrain.errors import ConfigError
from sweeps.base_config import first_difference
from sweeps.expand import ExistingSweep, expand
from sweeps.overrides import Override, parse_flag, parse_set
from sweeps.sweep_section import read_section
from tests.support.sweep_plans import draft, expanded, run_names

AXES = {
    "resources.nodes": st.integers(1, 8),
    "resources.gpus_per_node": st.integers(1, 4),
    "train.local_batch_size": st.sampled_from([1, 2, 8, 32]),
    "optim.lr": st.sampled_from([0.1, 0.01, 1e-3]),
    "model.hidden": st.lists(st.integers(1, 64), min_size=1, max_size=3),
    "parallel.strategy": st.sampled_from(["auto", "ddp"]),
}
some_axes = st.fixed_dictionaries(
    {},
    optional={key: st.lists(values, min_size=1, max_size=3, unique_by=str) for key, values in AXES.items()},
)


@settings(max_examples=25, deadline=None)
@given(axes=some_axes, repeats=st.integers(1, 3), scaling=st.sampled_from(["weak", "strong"]))
def test_a_sweep_is_the_product_of_its_axes(axes: dict[str, list[Any]], repeats: int, scaling: str) -> None:
    # 26880 = 32 * 840 is divisible by every world size there is here, with most local batches
    train = (
        {"steps": 10, "global_batch_size": 26880}
        if scaling == "strong"
        else {"steps": 10, "local_batch_size": 4}
    )
    base = draft(train=train, sweep={"axes": axes, "repeats": repeats, "scaling": scaling})
    try:
        plan = expand(base, name="s")
    except ConfigError as error:
        if "divisible" not in str(error):  # else hypothesis found a batch that the ranks cannot share
            raise
        return
    assert len(plan.runs) == repeats * prod(len(values) for values in axes.values())
    assert len(set(run_names(plan))) == len(plan.runs)
    assert len({run.config_key for run in plan.runs}) == len(plan.runs)
    for run in plan.runs:
        assert set(run.axes) == set(axes)
        assert run.batch.world == run.config.world_size
        assert run.config.train.local_batch_size == run.batch.local
        assert run.config.train.global_batch_size == run.batch.global_
        assert run.batch.local * run.batch.accumulation * run.batch.world == run.batch.global_
    if scaling == "strong":
        assert {run.batch.global_ for run in plan.runs} == {26880}
    elif "train.local_batch_size" not in axes:
        assert {run.batch.local for run in plan.runs} == {4}


@settings(max_examples=15, deadline=None)
@given(nodes=st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True), repeats=st.integers(1, 3))
def test_repeats_are_outermost_and_nodes_ascend(nodes: list[int], repeats: int) -> None:
    plan = expanded(draft(sweep={"repeats": repeats}), nodes=" ".join(map(str, nodes)))
    shapes = [(run.repeat, run.config.resources.nodes) for run in plan.runs]
    assert shapes == sorted(shapes)


def test_progress_counts_the_combinations() -> None:
    seen = []

    def progress(items: Sequence[Any], text: str) -> Iterator[Any]:
        for item in items:
            seen.append((text, len(items)))
            yield item

    expanded(draft(), "optim.lr=0.1,0.2", nodes="1 2", progress=progress)
    assert seen == [("checking combinations", 4)] * 4


def test_an_axis_may_supply_a_required_option() -> None:
    plan = expanded(draft(data={"kind": "tokens"}, model={"kind": "gpt"}), "data.path=a.bin,b.bin")
    assert [run.axes["data.path"] for run in plan.runs] == ["a.bin", "b.bin"]
    assert "path" not in plan.base["data"]


def test_unscaled_batch_sizes_refer_to_each_runs_own_ranks() -> None:
    base = draft(train={"steps": 1, "global_batch_size": 8})
    existing = ExistingSweep(base_ranks=4)
    scaled = expanded(base, nodes="2", existing=existing)
    unscaled = expanded(base, nodes="2", existing=existing, scale_batch=False)
    assert [plan.runs[0].batch.global_ for plan in (scaled, unscaled)] == [4, 8]
    assert (scaled.base_ranks, unscaled.base_ranks) == (4, None)


def test_overrides_win_over_the_file() -> None:
    axes = {"resources.nodes": [1, 2], "optim.lr": [0.1, 0.2]}
    base = draft(sweep={"axes": axes, "repeats": 2, "scaling": "strong"})
    plan = expand(
        base,
        [
            parse_flag("--nodes", "resources.nodes", ["4"]),
            parse_set("optim.lr=0.5"),
            parse_set("train.seed=1,2"),
            Override("sweep.repeats", (1,), "--repeats", axis=False),
        ],
        name="s",
    )
    assert [
        (run.config.resources.nodes, run.config.optim.lr, run.config.train.seed) for run in plan.runs
    ] == [
        (4, 0.5, 1),
        (4, 0.5, 2),
    ]
    assert plan.scaling == "strong"


def test_grids_are_a_union_each_with_the_common_axes() -> None:
    sweep = {
        "axes": {"resources.nodes": [1, 2]},
        "grids": {"seeds": {"train.seed": [0, 1]}, "rates": {"optim.lr": [0.1]}, "same": {"optim.lr": [0.1]}},
    }
    assert len(expand(draft(sweep=sweep), name="s").runs) == 2 * (2 + 1)  # a point of two grids is one run
    assert len(expand(draft(sweep=sweep), name="s", grids=["rates"]).runs) == 2


def test_exclusion_removes_runs_that_match_every_key() -> None:
    base = draft(sweep={"exclude": [{"resources.nodes": 2, "optim.lr": 0.1}, {"train.seed": 7}]})
    plan = expanded(base, "optim.lr=0.1,0.2", nodes="1 2")
    assert [(run.config.resources.nodes, run.config.optim.lr) for run in plan.runs] == [
        (1, 0.1),
        (1, 0.2),
        (2, 0.2),
    ]


def test_exclusion_comes_before_the_check_of_combinations() -> None:
    base = draft(sweep={"exclude": [{"resources.nodes": 2, "parallel.strategy": "single"}]})
    assert len(expanded(base, "parallel.strategy=single,ddp", nodes="1 2").runs) == 3


@pytest.mark.parametrize(
    ("key", "default", "other"), [("optim.lr", 0.001, 0.1), ("parallel.pipeline.schedule", "1f1b", "gpipe")]
)
def test_exclusion_matches_default_values(key: str, default: Any, other: Any) -> None:
    base = draft(sweep={"exclude": [{"resources.nodes": 2, key: default}]})
    assert len(expanded(base, nodes="1 2").runs) == 1
    assert len(expanded(base, f"{key}={other}", nodes="1 2").runs) == 2


@pytest.mark.parametrize("scaling", ["weak", "strong"])
@pytest.mark.parametrize(
    "sizes",
    [{"local_batch_size": 8}, {"global_batch_size": 64}, {"local_batch_size": 4, "global_batch_size": 16}],
)
def test_a_sweep_extended_later_equals_one_submitted_at_once(scaling: str, sizes: dict[str, int]) -> None:
    base = draft(train={"steps": 10, **sizes}, sweep={"scaling": scaling})
    at_once = expanded(base, nodes="1 2 4")
    first = expanded(base, nodes="1 2")
    existing = ExistingSweep({run.config_key: run.name for run in first.runs}, first.base_ranks)
    then = expanded(base, nodes="2 4", existing=existing)
    assert {run.config_key for run in [*first.runs, *then.runs]} == {run.config_key for run in at_once.runs}
    assert first_difference(first.base, then.base) is None


@pytest.mark.parametrize(
    ("sweep", "difference"),
    [
        (
            {"axes": {"train.log_every": [5, 10], "job.time_limit_min": [1, 2]}},
            "job.time_limit_min=1 and job.time_limit_min=2",
        ),
        (
            {"grids": {"a": {"train.log_every": [5]}, "b": {"job.time_limit_min": [1]}}},
            "train.log_every=5 and train.log_every=base, job.time_limit_min=base and job.time_limit_min=1",
        ),
    ],
)
def test_runs_that_differ_only_outside_the_config_key_are_refused(
    sweep: dict[str, Any], difference: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        expand(draft(sweep=sweep), name="s")
    assert str(raised.value) == f"two runs would be the same: {difference} have the same config key"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["train.lcal_batch_size=1,2"],
            "--set: unknown key 'train.lcal_batch_size'; did you mean 'train.local_batch_size'?",
        ),
        (["optim.lr=1", "optim.lr=2"], "--set: optim.lr is given twice"),
        (["optim.lr=fast"], "--set: optim.lr='fast': a number is needed"),
        (["resources.nodes=2"], "--set: resources.nodes is given twice (first by --nodes)"),
        (["train.steps.more=1"], "--set: train.steps is a value, not a section"),
        (["parallel.strategy=single"], "--set: parallel.strategy=single does not go with resources.nodes="),
    ],
)
def test_mistakes_on_the_command_line_name_their_flag(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        expanded(draft(), *overrides, nodes="1 2")
    assert str(raised.value).startswith(message)


def test_an_unknown_grid_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="--grid: no grid 'seds' in the sweep file; did you mean 'seeds'"):
        expand(draft(sweep={"grids": {"seeds": {"train.seed": [1]}}}), name="s", grids=["seds"])


@pytest.mark.parametrize("file", sorted(Path("sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_sweeps_expand(file: Path) -> None:
    assert expand(load(file), name=file.stem).runs


def test_a_sweep_section_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^sweep=3 must be a mapping$"):
        read_section(Draft({"sweep": 3}))


def test_a_grid_of_a_file_without_grids_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--grid: no grid 'x' in the sweep file; grids: none$"):
        expand(draft(), name="s", grids=["x"])


def test_a_mistake_in_an_axis_without_a_line_is_in_the_sweep_section() -> None:
    with pytest.raises(ConfigError, match=r"^sweep: train\.seed: the axis has the value 1 twice$"):
        expand(draft(sweep={"axes": {"train.seed": [1, 1]}}), name="s")


def test_a_point_is_one_run_in_whatever_order_grids_name_its_keys() -> None:
    grids = {"a": {"train.seed": [1], "optim.lr": [0.1]}, "b": {"optim.lr": [0.1], "train.seed": [1]}}
    assert len(expand(draft(sweep={"grids": grids}), name="s").runs) == 1
