"""Curves: which runs are compared with which, and the arithmetic of speed-up, efficiency and losses."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.results.curves import Curve, scaling_curves
from analysis.stats.estimates import Estimate
from disttrain.errors import ConfigError
from disttrain.records.steps import PHASES
from tests.support.studies import BUCKET, STRATEGY, curves_of, run_of, sweep_of


def of_gpus(*shapes: tuple[int, int], base: str | None = None, **metrics: Any) -> Curve:
    """The one curve of runs of these shapes (nodes, GPUs of a node), each 5 % slower than the one before."""
    runs = [
        run_of(*shape, mean_s=0.1 * 1.05**at, metrics={"device": "NVIDIA H100", **metrics})
        for at, shape in enumerate(shapes)
    ]
    (curve,) = scaling_curves(runs, base)
    return curve


@pytest.mark.parametrize(
    ("scaling", "base", "sizes"),
    [
        ("weak", None, [(1, 8, 0.1), (2, 8, 0.12), (4, 8, 0.14)]),
        ("weak", "2", [(1, 8, 0.1), (2, 8, 0.12), (4, 8, 0.14)]),
        ("strong", None, [(1, 64, 0.8), (2, 32, 0.5), (4, 16, 0.3)]),
        ("strong", "4", [(2, 32, 0.5), (4, 16, 0.3), (8, 8, 0.2)]),
        ("mixed", None, [(1, 8, 0.1), (2, 6, 0.1), (4, 5, 0.1)]),
        ("weak", None, [(1, 8, 0.1), (1, 8, 0.2), (2, 8, 0.15), (2, 8, 0.4)]),
        ("one size", None, [(2, 8, 0.1)]),
    ],
)
def test_one_formula_holds_for_weak_and_strong_scaling_and_losses_sum_to_what_is_missing(
    scaling: str, base: str | None, sizes: list[tuple[int, int, float]]
) -> None:
    """Of runs with so many nodes, samples of a rank, and seconds of a step."""
    runs = [
        run_of(nodes, repeat=at, batch=batch, mean_s=mean_s)
        for at, (nodes, batch, mean_s) in enumerate(sizes)
    ]
    (curve,) = scaling_curves(runs, base)
    assert curve.scaling == scaling
    reference = curve.base
    assert reference is not None
    assert reference.size == int(base or curve.points[0].size)
    assert reference.efficiency == reference.speedup == Estimate(1.0, 1.0, 1.0, 0)
    for point in curve.points:
        work = (point.global_batch_size / point.size) / (reference.global_batch_size / reference.size)
        assert point.efficiency.value == pytest.approx(work * reference.step_s.value / point.step_s.value)
        assert point.speedup.value == pytest.approx(point.samples_per_s.value / reference.samples_per_s.value)
        assert sum(value or 0 for value in point.composition.values()) == pytest.approx(point.step_s.value)
        assert sum(point.loss_by_phase.values()) == pytest.approx(1 - point.efficiency.value)
        assert point.step_s.value == pytest.approx(point.global_batch_size / point.samples_per_s.value)


def test_a_point_has_the_figures_of_its_repeats() -> None:
    memory = (3 * 10**9, 5 * 10**9, None)
    runs = [
        run_of(
            2, 2, repeat, mean_s=0.1 + repeat / 100, metrics={"peak_memory_bytes": each, "accumulation": 2}
        )
        for repeat, each in enumerate(memory)
    ]
    ((point,),) = (curve.points for curve in scaling_curves(runs))
    assert (point.shape, point.world_size, point.local_batch_size, point.accumulation) == ("2x2", 4, 8, 2)
    assert (len(point.runs), point.peak_memory_bytes) == (3, 5 * 10**9)
    assert point.tokens_per_s == pytest.approx(128 * point.samples_per_s.value)
    assert point.samples_per_s.low < point.samples_per_s.value < point.samples_per_s.high
    assert point.samples_per_s_by_run == pytest.approx([32 / (0.1 + at / 100) for at in range(3)])
    ((alone,),) = (curve.points for curve in scaling_curves([run_of(metrics={"peak_memory_bytes": None})]))
    assert (alone.peak_memory_bytes, alone.samples_per_s.low) == (None, None)
    assert alone.composition["comm_transfer_s"] is None, "one rank has no transfer, which is not zero"
    assert alone.composition["checkpoint_s"] == 0


def test_runs_that_do_not_count_are_in_no_point_and_curves_keep_real_and_emulated_runs_apart() -> None:
    runs = [*sweep_of(), run_of(4, included=False), run_of(8, metrics={"emulated": True})]
    real, emulated = scaling_curves(runs)
    assert [[point.size for point in curve.points] for curve in (real, emulated)] == [[1, 2], [8]]
    assert [(curve.label, curve.emulated) for curve in (real, emulated)] == [
        ("real", False),
        ("emulated", True),
    ]


@pytest.mark.parametrize(
    ("groups", "labels"),
    [
        ([{STRATEGY: kind, "optim.lr": 1} for kind in ("ddp", "auto")], ["strategy auto", "strategy ddp"]),
        ([{BUCKET: None}, {BUCKET: 32}, {BUCKET: 4}], [f"bucket_mb {size}" for size in (4, 32, None)]),
        (
            [{"model.kind": "gpt", "optim.name": "sgd"}, {"model.kind": "mlp", "optim.name": "adamw"}],
            ["model gpt, optim sgd", "model mlp, optim adamw"],
        ),
        (
            [{"model.seed": 1, "train.seed": 2}, {"model.seed": 3, "train.seed": 4}],
            ["model.seed 1, train.seed 2", "model.seed 3, train.seed 4"],
        ),
    ],
)
def test_runs_are_grouped_by_what_was_swept_and_labelled_by_what_differs(groups: Any, labels: Any) -> None:
    curves = curves_of((1, 2), groups=groups)
    assert [curve.label for curve in curves] == labels
    assert {len(point.runs) for curve in curves for point in curve.points} == {3}


def test_curves_of_several_sweeps_are_labelled_by_sweep_and_by_differing_keys() -> None:
    runs = [run for sweep in "ba" for run in sweep_of((1,), groups=[{BUCKET: 1}, {BUCKET: 2}], sweep=sweep)]
    labels = [f"{sweep}, bucket_mb {size}" for sweep in "ab" for size in (1, 2)]
    assert [curve.label for curve in scaling_curves(runs)] == labels


@pytest.mark.parametrize("base", ["2", "2 ranks", "n2", "2 nodes", "2x1", "n2x1-r1"])
def test_a_base_can_be_named(base: str) -> None:
    (curve,) = scaling_curves(sweep_of((1, 2, 4)), base)
    assert [point.is_base for point in curve.points] == [False, True, False]


def test_a_base_that_no_run_has_is_refused_with_the_sizes_that_are_known() -> None:
    for base in ("3", "two", "3 nodes", "2x2"):
        with pytest.raises(ConfigError, match=r"sizes: 1 \(1x1\), 2 \(2x1\)$"):
            scaling_curves(sweep_of(), base)
    with pytest.raises(ConfigError, match=r"sizes: none: no run has finished$"):
        scaling_curves([run_of(included=False)], "1")


def test_a_curve_without_the_base_has_no_efficiency() -> None:
    with_base, without = scaling_curves([*sweep_of(), *sweep_of((4, 8), sweep="t")], "2")
    assert with_base.base is not None
    assert without.base is None
    assert all(point.efficiency is None and point.loss_by_phase is None for point in without.points)


def test_one_curve_goes_on_over_all_gpus_from_the_first_node_to_several() -> None:
    curve = of_gpus((1, 1), (1, 4), (1, 8), (2, 8))
    assert (curve.unit, curve.scaling, curve.node_size) == ("GPU", "weak", 8)
    assert [(point.size, point.shape) for point in curve.points] == [
        (1, "1x1"), (4, "1x4"), (8, "1x8"), (16, "2x8"),
    ]  # fmt: skip
    assert [point.efficiency.value for point in curve.points] == pytest.approx([1.05**-i for i in range(4)])
    assert curve.name(curve.points[3]) == "16 GPUs"
    assert [of_gpus(*shapes).node_size for shapes in (((1, 4), (1, 8)), ((1, 1), (2, 1)))] == [None, None]


def test_equal_gpus_in_other_shapes_are_points_of_one_size_told_apart() -> None:
    curve = of_gpus((1, 4), (4, 1), (2, 4), (1, 8))
    assert [curve.name(point) for point in curve.points] == [
        "4 GPUs (4x1)", "4 GPUs (1x4)", "8 GPUs (2x4)", "8 GPUs (1x8)",
    ]  # fmt: skip
    assert [point.shape for point in curve.line] == ["1x4", "1x8"]
    assert curve.base == curve.points[1]
    for base, shape in (("8 gpus", "1x8"), ("2 nodes", "2x8"), ("2x4", "2x4")):
        several = of_gpus((1, 8), (2, 4), (2, 8), base=base)
        assert [point.shape for point in several.points if point.is_base] == [shape]


@pytest.mark.parametrize("metrics", [{"device": "cpu"}, {"emulated": True}, {"device": "unknown"}])
def test_runs_on_cpus_and_emulated_runs_count_ranks(metrics: dict[str, object]) -> None:
    curve = of_gpus((1, 2), (2, 2), **metrics)
    assert (curve.unit, [curve.name(point) for point in curve.points]) == ("rank", ["2 ranks", "4 ranks"])


@pytest.mark.parametrize(("device", "sizes"), [("H100", [1, 4]), ("cpu", [1])])
def test_the_one_rank_of_dp_counts_the_gpus_of_its_node(device: str, sizes: list[int]) -> None:
    one_rank = {"world_size": 1, "ranks_per_node": 1, "device": device}
    runs = [run_of(1, gpus, axes={STRATEGY: "dp"}, metrics=one_rank) for gpus in (1, 4)]
    (curve,) = scaling_curves(runs)
    assert [(point.size, point.per_node) for point in curve.points] == [(size, size) for size in sizes]
    assert {run.devices for run in runs} == {*sizes}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_point_without_phases_has_no_losses_by_phase(nodes: int) -> None:
    unmeasured = {"composition": dict.fromkeys(PHASES)}
    (curve,) = scaling_curves(
        [run_of(size, metrics=unmeasured if size == nodes else None) for size in (1, 2)]
    )
    assert curve.points[1].loss_by_phase is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"axes": {"model.kind": "mlp"}}, "model"),
        ({"axes": {"precision.dtype": "bf16"}}, "dtype"),
        ({"axes": {"data.kind": "digits"}}, "data"),
    ],
)
def test_sizes_of_another_program_have_no_base(change: dict[str, Any], reason: str) -> None:
    """As in runs that were started by hand: their keys are no axes, as the shapes differ."""
    runs = [run_of(1), run_of(2, **change)]
    for run in runs:
        run.record.axes.clear()
    (curve,) = scaling_curves(runs)
    assert (curve.other_program, curve.base) == (f"runs at 1 and 2 ranks differ in {reason}", None)
