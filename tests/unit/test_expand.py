"""A sweep file and the command line, expanded into runs, and the base config that they share."""

import copy
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrain.config.parsing import load
from disttrain.config.without_effect import options_without_effect
from disttrain.errors import ConfigError
from sweeps.base_config import first_difference
from sweeps.expand import ExistingSweep, expand
from sweeps.overrides import Override, parse_flag, parse_set
from tests.support.sweep_plans import draft, expanded, run_names

AXES = {
    "resources.nodes": st.integers(1, 8),
    "resources.gpus_per_node": st.integers(1, 4),
    "train.local_batch_size": st.sampled_from([1, 2, 8, 32]),
    "optim.lr": st.sampled_from([0.1, 0.01, 1e-3]),
    "model.hidden": st.lists(st.integers(1, 64), min_size=1, max_size=3),
}
some_axes = st.fixed_dictionaries(
    {}, optional={key: st.lists(axis, min_size=1, max_size=3, unique_by=str) for key, axis in AXES.items()}
)


@settings(max_examples=25, deadline=None)
@given(axes=some_axes, repeats=st.integers(1, 3), scaling=st.sampled_from(["weak", "strong"]))
def test_a_sweep_is_the_product_of_its_axes(axes, repeats, scaling):
    # 26880 = 32 * 840 is divisible by every world size there is here, with most local batches
    size = {"global_batch_size": 26880} if scaling == "strong" else {"local_batch_size": 4}
    sweep = {"axes": axes, "repeats": repeats, "scaling": scaling}
    try:
        plan = expand(draft(train={"steps": 10, **size}, sweep=sweep), name="s")
    except ConfigError as error:
        if "divisible" not in str(error):  # else hypothesis found a batch that the ranks cannot share
            raise
        return
    assert len(plan.runs) == repeats * prod(map(len, axes.values()))
    assert len({run.config_key for run in plan.runs}) == len(set(run_names(plan))) == len(plan.runs)
    for run in plan.runs:
        train = run.config.train
        assert run.axes.keys() == axes.keys()
        assert run.batch.world == run.config.world_size
        assert (train.local_batch_size, train.global_batch_size) == (run.batch.local, run.batch.global_)
    if scaling == "strong":
        assert {run.batch.global_ for run in plan.runs} == {26880}
    elif "train.local_batch_size" not in axes:
        assert {run.batch.local for run in plan.runs} == {4}


def test_repeats_are_outermost_and_shapes_ascend():
    sizes, axes = [], {"resources.nodes": [4, 1], "resources.gpus_per_node": [2, 1], "train.seed": [9, 5]}

    def progress(points, text):
        sizes.append(len(points))
        return points

    plan = expand(draft(sweep={"axes": axes, "repeats": 2}), name="s", progress=progress)
    once = [(nodes, gpus, seed) for nodes in (1, 4) for gpus in (1, 2) for seed in (9, 5)]
    assert [(run.repeat, *run.axes.values()) for run in plan.runs] == [
        (repeat, *point) for repeat in (0, 1) for point in once
    ]
    assert sizes == [8], "combinations that are checked"


@pytest.mark.parametrize(
    ("repeats", "within", "most"),
    [("auto:2%", 0.02, 10), ("auto:.5%:100", 0.005, 100), ("auto:2%:3", 0.02, 3)],
)
def test_the_rule_of_automatic_repeats_plans_the_most(repeats, within, most):
    plan = expand(draft(sweep={"repeats": repeats}), name="s")
    assert (plan.repeats.within, plan.repeats.most, len(plan.runs)) == (within, most, most)


def test_an_axis_may_supply_a_required_option():
    plan = expanded(draft(data={"kind": "tokens"}, model={"kind": "gpt"}), "data.path=a.bin,b.bin")
    assert [run.axes["data.path"] for run in plan.runs] == ["a.bin", "b.bin"]
    assert "path" not in plan.base["data"]


def test_batch_sizes_refer_to_the_ranks_of_the_first_command_unless_each_run_has_its_own():
    base = draft(train={"steps": 1, "global_batch_size": 8})
    existing = ExistingSweep(base_ranks=4)
    plans = [
        expanded(base, nodes="2 4"),
        expanded(base, nodes="2", existing=existing),
        expanded(base, nodes="2", existing=existing, scale_batch=False),
    ]
    assert [plan.base_ranks for plan in plans] == [2, 4, None]
    assert [run.batch.global_ for plan in plans for run in plan.runs] == [8, 16, 4, 8]


@pytest.mark.parametrize("scaling", ["weak", "strong"])
@pytest.mark.parametrize("local", [8, None])
def test_a_sweep_extended_later_equals_one_submitted_at_once(scaling, local):
    sizes = {"local_batch_size": local, "global_batch_size": 64}
    base = draft(train={"steps": 10, **sizes}, sweep={"scaling": scaling})
    first = expanded(base, nodes="1 2")
    existing = ExistingSweep({run.config_key: run.name for run in first.runs}, first.base_ranks)
    then = expanded(base, nodes="2 4", existing=existing)
    at_once = expanded(base, nodes="1 2 4")
    assert {run.config_key for run in [*first.runs, *then.runs]} == {run.config_key for run in at_once.runs}
    assert first_difference(first.base, then.base) is None


def test_overrides_win_over_the_file_and_leave_it_as_it_was():
    axes = {"resources.nodes": [1, 2], "optim.lr": [0.1, 0.2]}
    base = draft(optim={"name": "sgd"}, sweep={"axes": axes, "repeats": 2, "scaling": "strong"})
    overrides = [
        parse_flag("--nodes", "resources.nodes", ["4"]),
        *map(parse_set, ["optim.lr=0.5", "train.seed=1,2"]),
        Override("sweep.repeats", (1,), "--repeats", axis=False),
    ]
    plan = expand(base, overrides, name="s")
    configs = [run.config for run in plan.runs]
    assert [(c.resources.nodes, c.optim.lr, c.train.seed) for c in configs] == [(4, 0.5, 1), (4, 0.5, 2)]
    assert plan.scaling == "strong"
    assert base.data["optim"] == {"name": "sgd"}


@pytest.mark.parametrize(("chosen", "runs"), [([], 2 * (2 + 1)), (["rates"], 2)])
def test_grids_are_a_union_each_with_the_common_axes(chosen, runs):
    grids = {
        "seeds": {"train.seed": [0, 1]},
        "rates": {"optim.lr": [0.1], "train.gc_every": [5]},
        "same": {"train.gc_every": [5], "optim.lr": [0.1]},
    }
    sweep = {"axes": {"resources.nodes": [1, 2]}, "grids": grids}
    assert len(expand(draft(sweep=sweep), name="s", grids=chosen).runs) == runs


@pytest.mark.parametrize("grids", [{}, {"seeds": {"train.seed": [1]}}])
def test_an_unknown_grid_is_refused_with_those_of_the_file(grids):
    with pytest.raises(ConfigError, match=rf"^--grid: no grid 'seds' .*grids: {', '.join(grids) or 'none'}$"):
        expand(draft(sweep={"grids": grids}), name="s", grids=["seds"])


@pytest.mark.parametrize(
    ("exclude", "axis", "left"),
    [
        ([{"resources.nodes": 2, "optim.lr": 0.1}, {"train.seed": 7}], "optim.lr=0.1,0.2", ["1", "1", "2"]),
        # before the check of combinations
        (
            [{"resources.nodes": 2, "parallel.strategy": "single"}],
            "parallel.strategy=single,ddp",
            ["1", "1", "2"],
        ),
        ([{"resources.nodes": 2, "optim.lr": 0.001}], "train.seed=0", ["1"]),  # the default
        ([{"resources.nodes": 2, "optim.lr": 0.001}], "optim.lr=0.1", ["1", "2"]),
        ([{"resources.nodes": 2, "parallel.pipeline.schedule": "1f1b"}], "train.seed=0", ["1"]),
    ],
)
def test_runs_that_match_every_key_of_an_entry_are_excluded(exclude, axis, left):
    plan = expanded(draft(sweep={"exclude": exclude}), axis, nodes="1 2")
    assert [str(run.config.resources.nodes) for run in plan.runs] == left


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.lcal_batch_size=1,2"], "--set: unknown key 'train.lcal_batch_size'"),
        (["optim.lr=1", "optim.lr=2"], "--set: optim.lr is given twice"),
        (["resources.nodes=2"], "--set: resources.nodes is given twice (first by --nodes)"),
        (["optim.lr=fast"], "--set: optim.lr='fast'"),
        (["parallel.strategy=single"], "--set: parallel.strategy=single does not go with resources.nodes="),
    ],
)
def test_mistakes_on_the_command_line_name_their_flag(overrides, message):
    with pytest.raises(ConfigError) as raised:
        expanded(draft(), *overrides, nodes="1 2")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("file", sorted(Path("sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_sweeps_expand_and_have_no_option_without_effect(file):
    runs = expand(load(file), name=file.stem).runs
    assert runs
    assert options_without_effect(run.config for run in runs) == []


# --- the base config ---


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("train.local_batch_size=4,16", None),  # an axis
        ("job.time_limit_min=5", None),  # outside of the config key
        ("optim.lr=0.001", None),  # the default, written out
        ("optim.lr=0.5", "optim.lr was 0.001 and is now 0.5"),
        ("sweep.scaling=strong", "sweep.scaling was weak and is now strong"),
        ("model.dropout=0.5", "model.dropout was 0.0 and is now 0.5"),
        ("model.transforms=[package:function]", "model.transforms was [] and is now ['package:function']"),
        ("train.epochs=null", None),
        ("checkpoint.start_from=a", "checkpoint.start_from was null and is now a"),
    ],
)
@pytest.mark.parametrize("recorded_by", ["this version", "one without transforms"])
def test_the_first_difference_of_two_commands(override, difference, recorded_by):
    recorded = copy.deepcopy(expanded(draft(), nodes="1 2").base)
    if recorded_by != "this version":
        del recorded["model"]["transforms"]
    assert first_difference(recorded, expanded(draft(), override, nodes="4").base) == difference


def test_a_difference_of_an_option_that_only_one_command_has():
    recorded, now = expanded(draft()).base, copy.deepcopy(expanded(draft()).base)
    now["data"]["path"] = 3
    assert first_difference(recorded, now) == "data.path was absent and is now 3"
    assert first_difference(now, recorded) == "data.path was 3 and is now absent"
    assert first_difference({"command": ["a.py", "b c"]}, {}) == "its command is a.py 'b c'"
