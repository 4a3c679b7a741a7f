"""Waterfalls close exactly, show gains, and have intervals that cover."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from analysis.efficiency import scaling_curves
from analysis.losses.waterfall import (
    ORDER,
    PERSISTENT,
    RESIDUAL,
    TRANSIENT,
    PhaseTimes,
    devices_of_run,
    from_peak,
    has_phases,
    phase_times,
    scales,
    split_waiting,
    waterfall,
)
from analysis.read.frames import load
from analysis.stats.estimates import Estimate, not_stationary
from disttrain.records.json_files import read_json, write_json
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run, fake_sweep

seconds = st.floats(0, 100)


@st.composite
def times(draw: st.DrawFn) -> PhaseTimes:
    """Phases that leave some of the step uncovered, in one to four repeats."""
    repeats = draw(st.integers(1, 4))
    row = st.lists(seconds, min_size=repeats, max_size=repeats).map(np.array)
    phases = {name: draw(row) for name in PHASES}
    uncovered = draw(st.lists(st.floats(0.01, 10), min_size=repeats, max_size=repeats).map(np.array))
    ranks = draw(st.integers(1, 64))
    samples = ranks * draw(st.integers(1, 32))
    return PhaseTimes(np.sum(list(phases.values()), axis=0) + uncovered, phases, ranks, samples, 2 * ranks)


@given(times(), times())
def test_parts_sum_to_the_loss_in_every_unit(point: PhaseTimes, base: PhaseTimes) -> None:
    found = waterfall(point, base)
    work = (point.samples / point.ranks) / (base.samples / base.ranks)
    assert found.ideal_s == pytest.approx(work * base.mean_step_s)
    scale_s = max(found.actual_s, found.ideal_s)
    assert abs(found.closing_error_s) <= 1e-12 * scale_s
    shares = math.fsum(part.share.value for part in found.parts)
    assert shares == pytest.approx(1 - found.efficiency, abs=1e-11 * scale_s / found.actual_s)
    rate, ideal_rate = found.samples / found.actual_s, found.samples / found.ideal_s
    lost = {
        "seconds": found.actual_s - found.ideal_s,
        "percent": 100 * (1 - found.efficiency),
        "throughput": ideal_rate - rate,
        "device_hours": found.devices * 1000 * (found.actual_s - found.ideal_s) / 3600,
        "money": 2 * found.devices * 1000 * (found.actual_s - found.ideal_s) / 3600,
        "energy": 300 * found.devices * 1000 * (found.actual_s - found.ideal_s),
    }
    for unit in scales(found, price_per_hour=2.0, watts=300.0):
        total = math.fsum(unit.factor * part.seconds.value for part in found.parts)
        assert total == pytest.approx(lost[unit.name], rel=1e-9, abs=1e-9 * scale_s * unit.factor)


@given(times(), times(), st.floats(1e6, 1e12), st.floats(1e9, 1e15))
def test_bars_from_the_peak_sum_to_the_step(
    point: PhaseTimes, base: PhaseTimes, flops: float, peak: float
) -> None:
    found = waterfall(point, base)
    bars = from_peak(found, flops, peak)
    largest_s = max(map(abs, bars.values()))
    assert math.fsum(bars.values()) == pytest.approx(found.actual_s, abs=1e-11 * largest_s)
    assert bars["peak"] == pytest.approx(flops * point.samples / point.devices / peak)


def test_a_gain_and_the_uncovered_time_are_shown() -> None:
    zero = {name: np.zeros(2) for name in PHASES}
    base = PhaseTimes(np.full(2, 1.0), {**zero, "compute_s": np.full(2, 0.8)}, 1, 8, 1)
    point = PhaseTimes(np.full(2, 1.0), {**zero, "compute_s": np.full(2, 0.5)}, 2, 16, 2)
    parts = {part.name: part for part in waterfall(point, base).parts}
    assert tuple(parts) == tuple(name for name in ORDER if name not in (PERSISTENT, TRANSIENT))
    assert parts["compute_s"].seconds.value == pytest.approx(-0.3)
    assert parts[RESIDUAL].seconds.value == pytest.approx(0.3)
    split = waterfall(*(split_waiting(times, np.zeros(2)) for times in (point, base)))
    assert tuple(part.name for part in split.parts) == tuple(name for name in ORDER if name != "comm_wait_s")


def test_the_waterfall_of_runs_agrees_with_the_losses_of_the_curve(tmp_path: Path) -> None:
    table = load([fake_sweep(tmp_path, scaling="strong")])
    (curve,) = scaling_curves(table)
    base = phase_times(curve.points[0], curve, table)
    for point in curve.points[1:]:
        found = waterfall(phase_times(point, curve, table), base)
        assert found.efficiency == pytest.approx(point.efficiency.value)
        for part in found.parts:
            if part.name != RESIDUAL:
                assert part.share.value == pytest.approx(point.loss_by_phase[part.name], abs=1e-9)
                assert part.share.low <= part.share.value <= part.share.high
        assert abs({part.name: part.share.value for part in found.parts}[RESIDUAL]) < 1e-9


def test_the_units_of_a_waterfall_and_those_that_need_a_price_or_power() -> None:
    zero = {name: np.zeros(2) for name in PHASES}
    base = PhaseTimes(np.full(2, 1.0), zero, 1, 8, 1)
    found = waterfall(PhaseTimes(np.full(2, 2.0), zero, 2, 16, 2), base)
    units = [
        (each.name, each.unit, each.factor) for each in scales(found, 1800, price_per_hour=2.0, watts=300.0)
    ]
    assert units == [
        ("seconds", "s per step", 1.0),
        ("percent", "% of the step", 50.0),
        ("throughput", "samples/s lost", 8.0),
        ("device_hours", "device-hours per 1,800 steps", 1.0),
        ("money", "per 1,800 steps", 2.0),
        ("energy", "J per 1,800 steps", 1_080_000.0),
    ]
    assert [each.name for each in scales(found)] == ["seconds", "percent", "throughput", "device_hours"]


def test_the_bar_of_kernels_is_the_compute_of_the_ideal_step_beyond_the_peak() -> None:
    zero = {name: np.zeros(2) for name in PHASES}
    times = PhaseTimes(np.full(2, 1.0), zero | {"compute_s": np.full(2, 0.75)}, 1, 8, 1)
    bars = from_peak(waterfall(times, times), 0.5, 16.0)
    assert (bars["peak"], bars["kernels"]) == pytest.approx((0.25, 0.5))
    assert from_peak(waterfall(times, times), 0.0625, 0.5)["peak"] == 1.0
    for flops, peak in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)):
        with pytest.raises(ValueError, match=r"^FLOPs per sample and peak FLOP/s must be positive$"):
            from_peak(waterfall(times, times), flops, peak)


def test_waiting_is_divided_by_its_persistent_share() -> None:
    phases = {name: np.zeros(2) for name in PHASES} | {"comm_wait_s": np.array([0.5, 0.25])}
    split = split_waiting(PhaseTimes(np.ones(2), phases, 2, 16, 2), np.array([0.5, 0.2]))
    assert split.phases[PERSISTENT] == pytest.approx([0.25, 0.05])
    assert split.phases[TRANSIENT] == pytest.approx([0.25, 0.2])
    assert "comm_wait_s" not in split.phases


def test_times_of_a_point_are_those_of_its_runs_alone(tmp_path: Path) -> None:
    sweeps = [
        fake_sweep(tmp_path, name, gpus_per_node=(2,), step_s=s) for name, s in (("one", 0.1), ("two", 0.3))
    ]
    table = load(sweeps)
    curve = next(curve for curve in scaling_curves(table) if curve.sweep == "one")
    point = curve.points[1]
    times = phase_times(point, curve, table)
    assert times.mean_step_s == pytest.approx(point.global_batch_size / point.samples_per_s.value)
    assert (len(times.step_s), times.ranks, times.devices, times.stationary) == (3, 4, 4, True)
    changing = replace(point, samples_per_s=not_stationary(point.samples_per_s))
    assert not phase_times(changing, curve, table).stationary


@pytest.mark.parametrize(
    ("device", "requested", "devices"),
    [("NVIDIA H100", "auto", 4), ("cpu", "auto", 1), (np.nan, "auto", 1), (np.nan, "cuda", 4)],
)
def test_devices_are_gpus_or_else_ranks(tmp_path: Path, device: object, requested: str, devices: int) -> None:
    """One process drives the four GPUs."""
    run = fake_run(tmp_path / "s" / "n1")
    rows = pd.DataFrame([{"path": str(run.path), "world_size": 7, "device": device}])
    record = read_json(run.run_json)
    resources = record["config"]["resources"] | {"gpus_per_node": 4, "device": requested}
    config = record["config"] | {"parallel": {"strategy": "dp"}, "resources": resources}
    write_json(run.run_json, record | {"config": config})
    assert devices_of_run(rows) == devices
    write_json(run.run_json, {"config": {}})
    assert devices_of_run(rows) == 7
    run.run_json.unlink()
    assert devices_of_run(rows) == 7


def test_a_point_whose_step_is_other_time_has_no_phases(tmp_path: Path) -> None:
    (curve,) = scaling_curves(load([fake_sweep(tmp_path)]))
    point = curve.points[0]
    assert has_phases(point)
    zero = dict.fromkeys(point.composition, 0.0)
    assert not has_phases(replace(point, composition=zero | {"other_s": 0.1}))
    assert not has_phases(replace(point, composition=dict.fromkeys(zero)))


def half_widths(found: Estimate) -> tuple[float, float]:
    assert found.low is not None
    assert found.high is not None
    return found.value - found.low, found.high - found.value


def test_intervals_are_welchs_and_those_of_shares_linearize_the_ratio() -> None:
    rng = np.random.default_rng(4)
    zero = {name: np.zeros(2) for name in PHASES}
    wait = rng.uniform(0.2, 0.3, 2)
    point = PhaseTimes(rng.uniform(1.5, 2, 2), zero | {"comm_wait_s": wait}, 2, 32, 2)
    before = {name: np.zeros(3) for name in PHASES} | {"comm_wait_s": rng.uniform(0.05, 0.1, 3)}
    base = PhaseTimes(rng.uniform(0.7, 0.8, 3), before, 1, 8, 1)  # half the samples of a rank
    found = waterfall(point, base)
    (part,) = (part for part in found.parts if part.name == "comm_wait_s")
    others = 2 * before["comm_wait_s"]
    linear = (wait - part.share.value * point.step_s) / found.actual_s
    for estimate, own, other in ((part.seconds, wait, others), (part.share, linear, others / found.actual_s)):
        interval = ttest_ind(own, other, equal_var=False).confidence_interval(0.95)
        half = (interval.high - interval.low) / 2
        assert half_widths(estimate) == pytest.approx((half, half))
        assert (estimate.repeats, estimate.basis) == (2, "repeats")


def test_intervals_cover_the_true_share() -> None:
    """Three repeats a side with 2 % spread in compute and 10 % in waiting; nominal coverage is 95 %."""
    generator, covered, count = np.random.default_rng(5), 0, 1500
    zero = {name: np.zeros(3) for name in PHASES}
    truth = 0.2 / 1.2
    for _ in range(count):
        compute, before = (1.0 * (1 + 0.02 * generator.standard_normal(3)) for _ in range(2))
        wait = 0.2 * (1 + 0.1 * generator.standard_normal(3))
        base = PhaseTimes(before, {**zero, "compute_s": before}, 1, 8, 1)
        point = PhaseTimes(compute + wait, {**zero, "compute_s": compute, "comm_wait_s": wait}, 2, 16, 2)
        share = next(p.share for p in waterfall(point, base).parts if p.name == "comm_wait_s")
        covered += share.low <= truth <= share.high
    assert 0.93 <= covered / count <= 0.985
