"""Curves: who is compared with whom, and the arithmetic of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.efficiency import as_table, scaling_curves
from analysis.read.frames import load
from analysis.stats.estimates import Estimate
from disttrain.errors import ConfigError
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run, fake_sweep


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_efficiency_is_the_same_formula_for_weak_and_strong(tmp_path: Path, scaling) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path, scaling=scaling, repeats=1)]))
    assert curve.scaling == scaling
    one, two, four = curve.points
    base = curve.base
    assert base == one
    for point in (one, two, four):
        work = (point.global_batch_size / point.world_size) / base.global_batch_size
        assert point.efficiency is not None
        assert point.speedup is not None
        assert point.efficiency.value == pytest.approx(work * base.step_s.value / point.step_s.value)
        assert point.speedup.value == pytest.approx(point.samples_per_s.value / base.samples_per_s.value)
    assert four.efficiency.value == pytest.approx(0.85**2, rel=0.05)


def test_repeats_give_intervals_and_the_base_needs_none(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path, repeats=3)]))
    one, two, _ = curve.points
    assert (one.efficiency.value, one.efficiency.low) == (1, None)
    assert two.efficiency.low < two.efficiency.value < two.efficiency.high
    assert one.samples_per_s.low < one.samples_per_s.value
    assert two.step_s.value == pytest.approx(two.global_batch_size / two.samples_per_s.value)


def test_runs_are_grouped_by_everything_swept_but_nodes(tmp_path: Path) -> None:
    axes = [
        {"parallel.strategy": "ddp", "model.kind": "gpt"},
        {"parallel.strategy": "auto", "model.kind": "gpt"},
    ]
    curves = scaling_curves(load([fake_sweep(tmp_path, axes=axes)]))
    assert [curve.label for curve in curves] == ["strategy auto", "strategy ddp"]
    assert all(len(point.runs) == 3 for curve in curves for point in curve.points)


def test_a_swept_null_is_a_group_like_any_other(tmp_path: Path) -> None:
    curves = scaling_curves(load([fake_sweep(tmp_path, axes=[{"optim.fused": None}, {"optim.fused": True}])]))
    assert [curve.axes["optim.fused"] for curve in curves] == [True, None]


def test_labels_name_the_section_where_the_key_says_nothing(tmp_path: Path) -> None:
    axes = [{"model.kind": "gpt", "optim.name": "sgd"}, {"model.kind": "mlp", "optim.name": "adamw"}]
    curves = scaling_curves(load([fake_sweep(tmp_path, axes=axes)]))
    assert [curve.label for curve in curves] == ["model gpt, optim sgd", "model mlp, optim adamw"]


def test_ranks_are_the_size_where_nodes_do_not_vary(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path, nodes=(1,), gpus_per_node=(1, 2))]))
    assert (curve.unit, [point.size for point in curve.points]) == ("rank", [1, 2])


def test_gpus_are_the_size_for_dp_whose_one_rank_has_all_of_them(tmp_path: Path) -> None:
    for gpus, mean_s in ((1, 0.1), (2, 0.06), (4, 0.04)):
        fake_run(
            tmp_path / "s" / f"g{gpus}",
            gpus_per_node=gpus,
            axes={"resources.gpus_per_node": gpus, "parallel.strategy": "dp"},
            mean_s=mean_s,
            overrides={"world_size": 1, "ranks_per_node": 1, "device": "NVIDIA H100"},
        )
    (curve,) = scaling_curves(load([tmp_path / "s"]))
    assert [(point.size, point.devices, len(point.runs)) for point in curve.points] == [
        (1, 1, 1),
        (2, 2, 1),
        (4, 4, 1),
    ]
    four, one = curve.points[2], curve.points[0]
    assert curve.scaling == "weak"
    assert four.efficiency.value == pytest.approx(four.samples_per_s.value / one.samples_per_s.value / 4)


def test_nodes_are_the_size_where_both_vary(tmp_path: Path) -> None:
    curves = scaling_curves(load([fake_sweep(tmp_path, nodes=(1, 2), gpus_per_node=(1, 2))]))
    assert [curve.label for curve in curves] == ["gpus_per_node 1", "gpus_per_node 2"]
    assert [point.world_size for point in curves[1].points] == [2, 4]
    assert [point.size for point in curves[1].points] == [1, 2]
    assert curves[1].points[0].efficiency.value == 1


@pytest.mark.parametrize("base", ["2", "n2", "n2x1-r1"])
def test_a_base_can_be_named(tmp_path: Path, base: str) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path)]), base)
    assert curve.base_size == 2
    assert curve.points[0].efficiency.value > 1
    assert curve.points[2].speedup.value == pytest.approx(2 * 0.85, rel=0.05)


def test_a_base_that_no_run_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sizes: 1, 2, 4"):
        scaling_curves(load([fake_sweep(tmp_path)]), "3")
    fake_run(tmp_path / "failed" / "n1", nodes=1, end="failed")
    with pytest.raises(ConfigError, match=r"sizes: none: no run has finished$"):
        scaling_curves(load([tmp_path / "failed"]), "3")


def test_a_curve_without_the_base_has_no_efficiency(tmp_path: Path) -> None:
    small = fake_sweep(tmp_path, "small", nodes=(1, 2))
    large = fake_sweep(tmp_path, "large", nodes=(4, 8))
    with_base, without = sorted(
        scaling_curves(load([small, large]), "2"), key=lambda curve: curve.points[0].size
    )
    assert with_base.base is not None
    assert without.base is None
    assert all(point.efficiency is None and point.loss_by_phase is None for point in without.points)


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_what_is_lost_adds_up_to_what_is_missing(tmp_path: Path, scaling) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path, repeats=1, scaling=scaling)]))
    for point in curve.points:
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)
    assert max(curve.points[2].loss_by_phase, key=curve.points[2].loss_by_phase.get) == "comm_transfer_s"


def test_phases_sum_to_the_step_of_the_table_however_repeats_differ(tmp_path: Path) -> None:
    for run, mean_s in (("n1-r0", 0.1), ("n1-r1", 0.2), ("n2-r0", 0.15), ("n2-r1", 0.4)):
        fake_run(tmp_path / "s" / run, nodes=int(run[1]), mean_s=mean_s)
    (curve,) = scaling_curves(load([tmp_path / "s"]))
    for point in curve.points:
        assert sum(value or 0 for value in point.composition.values()) == pytest.approx(point.step_s.value)
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)


def test_a_phase_that_no_run_measured_stays_null(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path, nodes=(1,))]))
    (point,) = curve.points
    assert point.composition["comm_transfer_s"] is None
    assert point.composition["checkpoint_s"] == 0


def test_efficiency_counts_ranks_where_ranks_per_node_are_swept(tmp_path: Path) -> None:
    (by_rank,) = scaling_curves(load([fake_sweep(tmp_path, "a", nodes=(1,), gpus_per_node=(1, 2, 4))]))
    assert [point.nodes for point in by_rank.points] == [1, 1, 1]
    assert by_rank.points[2].speedup.value == pytest.approx(4 * 0.85**2, rel=0.05)
    assert by_rank.points[2].efficiency.value == pytest.approx(0.85**2, rel=0.05)
    curves = scaling_curves(load([fake_sweep(tmp_path, "b", nodes=(1, 2), gpus_per_node=(1, 4))]))
    assert [curve.points[1].world_size for curve in curves] == [2, 8]
    for curve in curves:  # each against its own base, whose ranks per node are the same
        assert curve.points[1].efficiency.value == pytest.approx(0.85, rel=0.05)


def test_unfinished_runs_take_no_part(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2))
    fake_run(sweep / "n4", nodes=4, end="failed")
    (curve,) = scaling_curves(load([sweep]))
    assert [point.size for point in curve.points] == [1, 2]


def test_batches_held_in_neither_way_are_mixed(tmp_path: Path) -> None:
    for nodes, local in ((1, 8), (2, 6), (4, 5)):
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, local_batch_size=local)
    (curve,) = scaling_curves(load([tmp_path / "s"]))
    assert curve.scaling == "mixed"


def test_one_size_is_no_scaling_and_two_are(tmp_path: Path) -> None:
    (alone,) = scaling_curves(load([fake_sweep(tmp_path, "alone", nodes=(2,))]))
    (pair,) = scaling_curves(load([fake_sweep(tmp_path, "pair", nodes=(1, 2))]))
    assert (alone.scaling, pair.scaling) == ("one size", "weak")


def test_a_point_has_its_shape_batch_and_largest_memory(tmp_path: Path) -> None:
    runs = load([fake_sweep(tmp_path, nodes=(2,), gpus_per_node=(2,), repeats=2)])
    runs["peak_memory_bytes"] = [3e9, 5e9]
    ((point,),) = (curve.points for curve in scaling_curves(runs))
    assert (point.nodes, point.ranks_per_node, point.world_size, point.local_batch_size) == (2, 2, 4, 8)
    assert point.peak_memory_bytes == 5_000_000_000
    runs["peak_memory_bytes"] = None
    ((unknown,),) = (curve.points for curve in scaling_curves(runs))
    assert unknown.peak_memory_bytes is None


def test_the_table_has_one_row_a_point(tmp_path: Path) -> None:
    curves = scaling_curves(load([fake_sweep(tmp_path)]))
    table = as_table(curves)
    two = curves[0].points[1]
    row = table.iloc[1].to_dict()
    intervals = {}
    for name in ("samples_per_s", "step_s", "speedup", "efficiency"):
        estimate = getattr(two, name)
        intervals |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    assert row == {
        "curve": "default",
        "emulated": False,
        "scaling": "weak",
        "base_size": 1,
        "nodes": 2,
        "ranks": 2,
        "repeats": 3,
        "global_batch_size": 16,
        **{name: pytest.approx(value) for name, value in intervals.items()},
    }
    assert list(table["nodes"]) == [1, 2, 4]


def test_the_table_has_no_number_where_there_is_no_estimate(tmp_path: Path) -> None:
    alone = as_table(scaling_curves(load([fake_sweep(tmp_path, "one", repeats=1)])))
    assert alone["efficiency_low"].isna().all()
    small, large = (fake_sweep(tmp_path, name, nodes=nodes) for name, nodes in (("a", (1, 2)), ("b", (4, 8))))
    table = as_table(scaling_curves(load([small, large]), "2"))
    without = table[table["base_size"].isna()]
    assert list(without["nodes"]) == [4, 8]
    names = [f"{name}{end}" for name in ("speedup", "efficiency") for end in ("", "_low", "_high")]
    assert without[names].isna().all(axis=None)
    assert without["samples_per_s_low"].notna().all()


def test_a_point_has_its_tokens_and_accumulation(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", nodes=1, accumulation=2)
    table = load([tmp_path / "s"])
    (curve,) = scaling_curves(table)
    (point,) = curve.points
    assert point.accumulation == 2
    assert point.tokens_per_s == pytest.approx(table["tokens_per_s"].iloc[0])


def test_the_base_is_one_by_definition_over_its_repeats(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path)]))
    assert curve.base.efficiency == curve.base.speedup == Estimate(1.0, None, None, 3)


def test_keys_of_one_short_name_are_labelled_in_full(tmp_path: Path) -> None:
    axes = [{"model.seed": 1, "train.seed": 2}, {"model.seed": 3, "train.seed": 4}]
    curves = scaling_curves(load([fake_sweep(tmp_path, nodes=(1,), axes=axes)]))
    assert [curve.label for curve in curves] == ["model.seed 1, train.seed 2", "model.seed 3, train.seed 4"]
    assert {type(value) for curve in curves for value in curve.axes.values()} == {int}


def test_real_and_emulated_curves_are_labelled_as_such(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    fake_run(sweep / "waited", nodes=4, overrides={"emulated": True})
    assert [curve.label for curve in scaling_curves(load([sweep]))] == ["real", "emulated"]


def test_curves_of_several_sweeps_are_labelled_by_sweep_and_by_differing_keys(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 1}, {"parallel.ddp.bucket_mb": 2}]
    sweeps = [fake_sweep(tmp_path, name, nodes=(1,), axes=axes) for name in ("b", "a")]
    curves = scaling_curves(load(sweeps))
    assert [curve.label for curve in curves] == [
        f"{sweep}, bucket_mb {size}" for sweep in "ab" for size in (1, 2)
    ]


@pytest.mark.parametrize("base", [None, "2", "4"])
def test_losses_of_strong_scaling_refer_to_a_base_of_several_ranks(tmp_path: Path, base: str | None) -> None:
    sweep = fake_sweep(tmp_path, repeats=1, scaling="strong", nodes=(2, 4, 8))
    (curve,) = scaling_curves(load([sweep]), base)
    for point in curve.points:
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_point_without_phases_has_no_losses_by_phase(tmp_path: Path, nodes: int) -> None:
    for size in (1, 2):
        phases = dict.fromkeys(PHASES) if size == nodes else {}
        fake_run(tmp_path / "s" / f"n{size}", nodes=size, overrides={"composition": phases} if phases else {})
    (curve,) = scaling_curves(load([tmp_path / "s"]))
    assert curve.points[1].loss_by_phase is None
