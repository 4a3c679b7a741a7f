"""Curves: who is compared with whom, and the arithmetic of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.results.curves import Curve, scaling_curves
from analysis.stats.estimates import Estimate
from disttrain.errors import ConfigError
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run, fake_sweep, with_metrics


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_efficiency_is_the_same_formula_for_weak_and_strong(tmp_path: Path, scaling) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path, scaling=scaling, repeats=1)]))
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
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path, repeats=3)]))
    one, two, _ = curve.points
    assert (one.efficiency.value, one.efficiency.low) == (1, 1)
    assert two.efficiency.low < two.efficiency.value < two.efficiency.high
    assert one.samples_per_s.low < one.samples_per_s.value
    assert two.step_s.value == pytest.approx(two.global_batch_size / two.samples_per_s.value)


def test_runs_are_grouped_by_everything_swept_but_nodes(tmp_path: Path) -> None:
    axes = [
        {"parallel.strategy": "ddp", "model.kind": "gpt"},
        {"parallel.strategy": "auto", "model.kind": "gpt"},
    ]
    curves = scaling_curves(load_runs([fake_sweep(tmp_path, axes=axes)]))
    assert [curve.label for curve in curves] == ["strategy auto", "strategy ddp"]
    assert all(len(point.runs) == 3 for curve in curves for point in curve.points)


def test_a_swept_null_is_a_group_like_any_other(tmp_path: Path) -> None:
    curves = scaling_curves(
        load_runs([fake_sweep(tmp_path, axes=[{"optim.fused": None}, {"optim.fused": True}])])
    )
    assert [curve.axes["optim.fused"] for curve in curves] == [True, None]


def test_labels_name_the_section_where_the_key_says_nothing(tmp_path: Path) -> None:
    axes = [{"model.kind": "gpt", "optim.name": "sgd"}, {"model.kind": "mlp", "optim.name": "adamw"}]
    curves = scaling_curves(load_runs([fake_sweep(tmp_path, axes=axes)]))
    assert [curve.label for curve in curves] == ["model gpt, optim sgd", "model mlp, optim adamw"]


@pytest.mark.parametrize("base", ["2", "2 ranks", "n2", "2 nodes", "2x1", "n2x1-r1"])
def test_a_base_can_be_named(tmp_path: Path, base: str) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path)]), base)
    assert [point.is_base for point in curve.points] == [False, True, False]
    assert curve.points[0].efficiency.value > 1
    assert curve.points[2].speedup.value == pytest.approx(2 * 0.85, rel=0.05)


@pytest.mark.parametrize("base", ["3", "two", "3 nodes", "2x2"])
def test_a_base_that_no_run_has_is_refused(tmp_path: Path, base: str) -> None:
    with pytest.raises(ConfigError, match=r"sizes: 1 \(1x1\), 2 \(2x1\), 4 \(4x1\)$"):
        scaling_curves(load_runs([fake_sweep(tmp_path)]), base)


def test_without_a_finished_run_no_base_is_known(tmp_path: Path) -> None:
    fake_run(tmp_path / "failed" / "n1", nodes=1, end="failed")
    with pytest.raises(ConfigError, match=r"sizes: none: no run has finished$"):
        scaling_curves(load_runs([tmp_path / "failed"]), "3")


def gpu_curve(tmp_path: Path, *shapes: tuple[int, int], base: str | None = None, **fields: object) -> Curve:
    """The one curve of runs of these shapes (nodes, GPUs of a node), each 5 % slower than the one before."""
    for index, (nodes, gpus) in enumerate(shapes):
        fake_run(
            tmp_path / "s" / f"n{nodes}-g{gpus}",
            nodes=nodes,
            gpus_per_node=gpus,
            axes={"resources.nodes": nodes, "resources.gpus_per_node": gpus},
            mean_s=0.1 * 1.05**index,
            overrides={"device": "NVIDIA H100", **fields},
        )
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]), base)
    return curve


def test_one_curve_goes_on_over_all_gpus_from_the_first_node_to_several(tmp_path: Path) -> None:
    curve = gpu_curve(tmp_path, (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8))
    assert (curve.unit, curve.scaling, curve.node_size) == ("GPU", "weak", 8)
    assert [(point.size, point.shape) for point in curve.points] == [
        (1, "1x1"), (2, "1x2"), (4, "1x4"), (8, "1x8"), (16, "2x8"), (32, "4x8"),
    ]  # fmt: skip
    assert [point.efficiency.value for point in curve.points] == pytest.approx([1.05**-i for i in range(6)])
    assert curve.name(curve.points[4]) == "16 GPUs"
    assert gpu_curve(tmp_path / "one", (1, 4), (1, 8)).node_size is None


def test_equal_gpus_in_other_shapes_are_points_of_one_size_told_apart(tmp_path: Path) -> None:
    curve = gpu_curve(tmp_path, (1, 4), (4, 1), (2, 4), (1, 8))
    assert [curve.name(point) for point in curve.points] == [
        "4 GPUs (4x1)", "4 GPUs (1x4)", "8 GPUs (2x4)", "8 GPUs (1x8)",
    ]  # fmt: skip
    assert [point.shape for point in curve.line] == ["1x4", "1x8"]
    assert curve.base == curve.points[1]
    assert curve.points[0].efficiency.value == pytest.approx(1 / 1.05)


@pytest.mark.parametrize(("base", "shape"), [("8 gpus", "1x8"), ("2 nodes", "2x8"), ("2x4", "2x4")])
def test_a_base_of_several_shapes_is_that_with_the_fullest_nodes(tmp_path, base: str, shape: str) -> None:
    curve = gpu_curve(tmp_path, (1, 8), (2, 4), (2, 8), base=base)
    assert [point.shape for point in curve.points if point.is_base] == [shape]


def test_the_one_rank_of_dp_counts_the_gpus_of_its_node(tmp_path: Path) -> None:
    for gpus, mean_s in ((1, 0.1), (2, 0.06), (4, 0.04)):
        fake_run(
            tmp_path / "s" / f"g{gpus}",
            gpus_per_node=gpus,
            axes={"resources.gpus_per_node": gpus, "parallel.strategy": "dp"},
            mean_s=mean_s,
            overrides={"world_size": 1, "ranks_per_node": 1, "device": "H100", "local_batch_size": 8 * gpus},
        )
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]))
    assert [(point.size, point.shape) for point in curve.points] == [(1, "1x1"), (2, "1x2"), (4, "1x4")]
    four, one = curve.points[2], curve.points[0]
    assert curve.scaling == "weak"
    assert four.efficiency.value == pytest.approx(four.samples_per_s.value / one.samples_per_s.value / 4)


@pytest.mark.parametrize("fields", [{"device": "cpu"}, {"emulated": True}])
def test_runs_on_cpus_and_emulated_runs_count_ranks(tmp_path: Path, fields: dict[str, object]) -> None:
    curve = gpu_curve(tmp_path, (1, 2), (2, 2), **fields)
    assert (curve.unit, [curve.name(point) for point in curve.points]) == ("rank", ["2 ranks", "4 ranks"])


def test_a_curve_without_the_base_has_no_efficiency(tmp_path: Path) -> None:
    small = fake_sweep(tmp_path, "small", nodes=(1, 2))
    large = fake_sweep(tmp_path, "large", nodes=(4, 8))
    with_base, without = sorted(
        scaling_curves(load_runs([small, large]), "2"), key=lambda curve: curve.points[0].size
    )
    assert with_base.base is not None
    assert without.base is None
    assert all(point.efficiency is None and point.loss_by_phase is None for point in without.points)


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_what_is_lost_adds_up_to_what_is_missing(tmp_path: Path, scaling) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path, repeats=1, scaling=scaling)]))
    for point in curve.points:
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)
    assert max(curve.points[2].loss_by_phase, key=curve.points[2].loss_by_phase.get) == "comm_transfer_s"


def test_phases_sum_to_the_step_of_the_table_however_repeats_differ(tmp_path: Path) -> None:
    for run, mean_s in (("n1-r0", 0.1), ("n1-r1", 0.2), ("n2-r0", 0.15), ("n2-r1", 0.4)):
        fake_run(tmp_path / "s" / run, nodes=int(run[1]), mean_s=mean_s)
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]))
    for point in curve.points:
        assert sum(value or 0 for value in point.composition.values()) == pytest.approx(point.step_s.value)
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)


def test_a_phase_that_no_run_measured_stays_null(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path, nodes=(1,))]))
    (point,) = curve.points
    assert point.composition["comm_transfer_s"] is None
    assert point.composition["checkpoint_s"] == 0


def test_unfinished_runs_take_no_part(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2))
    fake_run(sweep / "n4", nodes=4, end="failed")
    (curve,) = scaling_curves(load_runs([sweep]))
    assert [point.size for point in curve.points] == [1, 2]


def test_batches_held_in_neither_way_are_mixed(tmp_path: Path) -> None:
    for nodes, local in ((1, 8), (2, 6), (4, 5)):
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, local_batch_size=local)
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]))
    assert curve.scaling == "mixed"


def test_one_size_is_no_scaling_and_two_are(tmp_path: Path) -> None:
    (alone,) = scaling_curves(load_runs([fake_sweep(tmp_path, "alone", nodes=(2,))]))
    (pair,) = scaling_curves(load_runs([fake_sweep(tmp_path, "pair", nodes=(1, 2))]))
    assert (alone.scaling, pair.scaling) == ("one size", "weak")


def test_a_point_has_its_shape_batch_and_largest_memory(tmp_path: Path) -> None:
    runs = load_runs([fake_sweep(tmp_path, nodes=(2,), gpus_per_node=(2,), repeats=2)])
    some = [
        *with_metrics(runs[:1], peak_memory_bytes=3 * 10**9),
        *with_metrics(runs[1:], peak_memory_bytes=5 * 10**9),
    ]
    ((point,),) = (curve.points for curve in scaling_curves(some))
    assert (point.shape, point.world_size, point.local_batch_size) == ("2x2", 4, 8)
    assert point.peak_memory_bytes == 5_000_000_000
    ((unknown,),) = (curve.points for curve in scaling_curves(with_metrics(runs, peak_memory_bytes=None)))
    assert unknown.peak_memory_bytes is None


def test_a_point_has_its_tokens_and_accumulation(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", nodes=1, accumulation=2)
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]))
    (point,) = curve.points
    assert point.accumulation == 2
    assert point.tokens_per_s == pytest.approx(point.metrics[0].tokens_per_s)


def test_the_base_is_one_by_definition_over_its_repeats(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load_runs([fake_sweep(tmp_path)]))
    assert curve.base.efficiency == curve.base.speedup == Estimate(1.0, 1.0, 1.0, 0)


def test_keys_of_one_short_name_are_labelled_in_full(tmp_path: Path) -> None:
    axes = [{"model.seed": 1, "train.seed": 2}, {"model.seed": 3, "train.seed": 4}]
    curves = scaling_curves(load_runs([fake_sweep(tmp_path, nodes=(1,), axes=axes)]))
    assert [curve.label for curve in curves] == ["model.seed 1, train.seed 2", "model.seed 3, train.seed 4"]
    assert {type(value) for curve in curves for value in curve.axes.values()} == {int}


def test_real_and_emulated_curves_are_labelled_as_such(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=1)
    fake_run(sweep / "waited", nodes=4, overrides={"emulated": True})
    assert [curve.label for curve in scaling_curves(load_runs([sweep]))] == ["real", "emulated"]


def test_curves_of_several_sweeps_are_labelled_by_sweep_and_by_differing_keys(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 1}, {"parallel.ddp.bucket_mb": 2}]
    sweeps = [fake_sweep(tmp_path, name, nodes=(1,), axes=axes) for name in ("b", "a")]
    curves = scaling_curves(load_runs(sweeps))
    assert [curve.label for curve in curves] == [
        f"{sweep}, bucket_mb {size}" for sweep in "ab" for size in (1, 2)
    ]


@pytest.mark.parametrize("base", [None, "2", "4"])
def test_losses_of_strong_scaling_refer_to_a_base_of_several_ranks(tmp_path: Path, base: str | None) -> None:
    sweep = fake_sweep(tmp_path, repeats=1, scaling="strong", nodes=(2, 4, 8))
    (curve,) = scaling_curves(load_runs([sweep]), base)
    for point in curve.points:
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_point_without_phases_has_no_losses_by_phase(tmp_path: Path, nodes: int) -> None:
    for size in (1, 2):
        phases = dict.fromkeys(PHASES) if size == nodes else {}
        fake_run(tmp_path / "s" / f"n{size}", nodes=size, overrides={"composition": phases} if phases else {})
    (curve,) = scaling_curves(load_runs([tmp_path / "s"]))
    assert curve.points[1].loss_by_phase is None
