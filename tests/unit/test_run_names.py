"""Names of the runs of a sweep."""

import pytest

from sweeps.expand import ExistingSweep
from sweeps.run_names import readable_names, unique_names
from tests.support.sweep_plans import draft, expanded, run_names

CONFIG = expanded(draft()).runs[0].config
TEXT = {"data": {"kind": "text"}, "model": {"kind": "gpt"}}


@pytest.mark.parametrize(
    ("sections", "sets", "names"),
    [
        (
            {},
            ["optim.lr=0.1,1e-4", "model.hidden=[32, 16]"],
            ["n1-lr0.1", "n1-lr1e-4", "n2-lr0.1", "n2-lr1e-4"],
        ),
        ({"resources": {"gpus_per_node": 4}}, [], ["n1-g4", "n2-g4"]),
        ({}, ["resources.gpus_per_node=1,2"], ["n1-g1", "n1-g2", "n2-g1", "n2-g2"]),
        ({"sweep": {"repeats": 2}}, [], ["n1-r0", "n2-r0", "n1-r1", "n2-r1"]),
        # paths are numbered, where there are several
        (TEXT, ["data.path=/some where/a"], ["n1", "n2"]),
        (TEXT, ["data.path=/a,null"], ["n1-path0", "n1-path1", "n2-path0", "n2-path1"]),
        # fields outside of the run key are left out
        ({}, ["job.time_limit_min=30", "job.env.OUT=/scratch/me"], ["n1", "n2"]),
    ],
)
def test_names_have_nodes_axes_and_repeats(sections, sets, names):
    assert run_names(expanded(draft(**sections), *sets, nodes="1 2")) == names


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"), ([1, 2], "1-2"), (["a", ["b", None]], "a-b-null"), ("-x-", "x"),
        ("XaZ_9.9", "XaZ_9.9"), ("a+b c", "a-b-c"), ("a" * 50, "a" * 40), (0.1, "0.1"), (0.01, "0.01"),
        (0.001, "1e-3"), (0.00025, "0.00025"), (3e-5, "3e-5"), (1e10, "1e10"), (10.0, "10"), (1e6, "1e6"),
        (0.1234567891, "0.1234567891"), (128, "128"), *((path, None) for path in (
            "/data", "a/b", r"C:\data", "~", "data.bin", "v2.txt", ["a", "b/c"], {"a": "/b"},
        )),
    ],
)  # fmt: skip
def test_a_value_is_short_and_a_path_is_in_no_name(value, shown):
    assert readable_names([(CONFIG, {"data.path": value}, 0)]) == [f"n1-path{shown}" if shown else "n1"]


@pytest.mark.parametrize(
    ("axes", "repeat", "name"),
    [
        (
            {"model.kind": "mlp", "parallel.strategy": "fsdp", "train.local_batch_size": 8},
            0,
            "n1-mlp-fsdp-b8",
        ),
        ({"optim.name": "sgd", "a.size": 1, "b.size": 2}, 0, "n1-namesgd-a.size1-b.size2"),
        ({"lr": 1, "optim.lr": 2}, 0, "n1-lr1-optim.lr2"),
        # not too long for a file name, which keeps its repeat
        (
            {f"{key}": "x" * 40 for key in "abcde"},
            12,
            f"n1-a{'x' * 40}-b{'x' * 40}-c{'x' * 40}-d{'x' * 30}-r12",
        ),
    ],
)
def test_keys_are_shortened(axes, repeat, name):
    assert readable_names([(CONFIG, axes, repeat)]) == [name]


@pytest.mark.parametrize(
    ("wanted", "existing", "unreadable", "names"),
    [
        ([("a", "1234567"), ("a", "2"), ("b", "3")], {"2": "a", "9": "b"}, [], ["a-123456", "a", "b-3"]),
        ([("a", "1"), ("b", "3")], {}, ["a"], ["a", "b"]),
        ([("a", "1"), ("b", "3")], {}, ["a-1"], ["a-1", "b"]),
        ([("a", "1"), ("a", "2")], {}, ["a"], ["a-1", "a-2"]),
    ],
)
def test_an_existing_run_keeps_its_name_and_new_ones_avoid_it(wanted, existing, unreadable, names):
    """An unreadable run may be the one of its name; two runs never get it."""
    assert unique_names(wanted, existing, unreadable) == names


def test_names_stay_where_values_are_added_at_the_end_of_an_axis():
    first = expanded(draft(**TEXT), "data.path=/a", "optim.lr=0.1")
    existing = ExistingSweep({run.config_key: f"own-{run.name}" for run in first.runs})  # of `--run-name`
    longer = expanded(draft(**TEXT), "data.path=/a,/b", "optim.lr=0.1,0.2", existing=existing)
    assert run_names(longer) == ["own-n1", "n1-path0-lr0.2", "n1-path1-lr0.1", "n1-path1-lr0.2"]
