"""PNG figures: what is drawn, read back from the axes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer

from analysis import utilization
from analysis.comparison import against
from analysis.efficiency import Curve, scaling_curves
from analysis.figures import png
from analysis.figures.composition_figure import composition_figure
from analysis.figures.ratio_figure import ratio_figure
from analysis.figures.scaling_figures import efficiency_figure, scaling_figure
from analysis.figures.step_time_figures import ecdf_figure, latency_figure
from analysis.figures.style import DPI, PHASE_COLOURS, PHASE_NAMES, WIDTH_IN
from analysis.figures.training_figures import gradient_norm_figure, training_figure
from analysis.figures.utilization_figure import utilization_figure
from analysis.read import training_curves
from analysis.read.frames import load
from analysis.stats.estimates import Estimate
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_sweep


@pytest.fixture
def curves(tmp_path: Path) -> list[Curve]:
    return scaling_curves(load([fake_sweep(tmp_path)]))


def test_every_phase_has_a_colour_of_its_own_and_a_name() -> None:
    assert tuple(PHASE_COLOURS) == tuple(PHASE_NAMES) == PHASES
    assert len(set(PHASE_COLOURS.values())) == len(PHASES)


def test_scaling_shows_points_intervals_and_the_ideal_line(curves: list[Curve]) -> None:
    (axes,) = scaling_figure(curves).axes
    (bars,) = axes.containers
    assert list(bars[0].get_ydata()) == [point.samples_per_s.value for point in curves[0].points]
    spans = bars[2][0].get_segments()
    assert [tuple(span[:, 1]) for span in spans] == [
        pytest.approx((point.samples_per_s.low, point.samples_per_s.high)) for point in curves[0].points
    ]
    ideal = next(line for line in axes.lines if str(line.get_label()).startswith("ideal"))
    base = curves[0].points[0].samples_per_s.value
    assert list(ideal.get_ydata()) == pytest.approx([base, 2 * base, 4 * base])
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylabel() == "throughput (samples/s)"


def test_figures_of_emulated_runs_are_marked(curves: list[Curve]) -> None:
    waited = [replace(curve, emulated=True) for curve in curves]
    for draw in (scaling_figure, efficiency_figure, composition_figure):
        assert draw(waited).get_suptitle() == "emulated"
        assert draw(curves).get_suptitle() == ""


def test_lines_of_several_curves_differ_and_their_legend_fits_into_the_figure(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]
    several = scaling_curves(load([fake_sweep(tmp_path, axes=axes)]))
    times = {(each.sweep, run): np.ones(9) for each in several for point in each.points for run in point.runs}
    figure = ecdf_figure(several, times)
    # Line2D.get_linestyle() is "--" for all patterns
    lines = [(line.get_color(), line._dash_pattern) for line in figure.axes[0].lines]  # type: ignore[attr-defined]
    assert len(set(map(str, lines))) == len(lines) == 6
    figure.draw_without_rendering()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= figure.bbox.width


def test_the_figure_of_ratios_is_marked_if_a_run_is_emulated(curves: list[Curve]) -> None:
    (waited,) = (replace(curve, emulated=True) for curve in curves)
    assert ratio_figure(against(curves, curves)).get_suptitle() == ""
    assert ratio_figure(against([waited], [waited])).get_suptitle() == "emulated"


def test_one_repeat_draws_no_interval(tmp_path: Path) -> None:
    (axes,) = efficiency_figure(scaling_curves(load([fake_sweep(tmp_path, repeats=1)]))).axes
    (bars,) = axes.containers
    assert all(span[0, 1] == pytest.approx(span[1, 1]) for span in bars[2][0].get_segments())


def test_efficiency_starts_at_zero_and_goes_down(curves: list[Curve]) -> None:
    (axes,) = efficiency_figure(curves).axes
    values = axes.containers[0][0].get_ydata()
    assert values[0] == 1
    assert values[2] == pytest.approx(0.72, abs=0.02)
    assert axes.get_ylim()[0] == 0


def test_a_huge_interval_does_not_squeeze_the_curve(curves: list[Curve]) -> None:
    wide = replace(curves[0].points[1], efficiency=Estimate(0.85, 0.001, 800.0, 2))
    squeezed = replace(curves[0], points=(curves[0].points[0], wide, curves[0].points[2]))
    (axes,) = efficiency_figure([squeezed]).axes
    assert axes.get_ylim()[1] < 1.5


@pytest.mark.parametrize("groups", [1, 2])
def test_composition_stacks_to_the_step_time(tmp_path: Path, groups: int) -> None:
    axes_of_sweep = [{"parallel.strategy": name} for name in ("ddp", "auto")][:groups]
    curves = scaling_curves(load([fake_sweep(tmp_path, axes=axes_of_sweep)]))
    (axes,) = composition_figure(curves).axes
    stacks = [bars for bars in axes.containers if isinstance(bars, BarContainer)]
    totals = np.sum([[bar.get_width() for bar in bars] for bars in stacks], axis=0)
    reach = max(bars[-1].get_x() + bars[-1].get_width() for bars in stacks)
    assert reach == pytest.approx(totals[-1])  # each part begins where the one before it ends
    steps_ms = [1e3 * point.step_s.value for curve in curves for point in curve.points]
    assert totals == pytest.approx(steps_ms)
    assert axes.get_xlabel() == "mean time of a step (ms)"
    colours = {bars.get_label(): bars[0].get_facecolor() for bars in stacks}
    assert "checkpoint" not in colours  # nobody saved anything
    assert matplotlib.colors.to_hex(colours["data transfer"]) == PHASE_COLOURS["comm_transfer_s"]


def test_training_has_a_line_a_run_and_a_ring_a_validation(tmp_path: Path) -> None:
    table = load([fake_sweep(tmp_path, nodes=(1, 2), repeats=2)])
    (axes,) = training_figure(scaling_curves(table), training_curves.losses(table), entropy_bits=4.8).axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == 110]
    rings = [line for line in axes.lines if list(line.get_xdata()) == [55, 110]]
    assert (len(curves), len(rings)) == (4, 4)
    unigram = next(line for line in axes.lines if line.get_label() == "_unigram")
    assert unigram.get_ydata()[0] == pytest.approx(4.8 * np.log(2))  # the losses are in nats


def test_gradient_norms_have_a_line_a_run(tmp_path: Path) -> None:
    table = load([fake_sweep(tmp_path, nodes=(1, 2), repeats=2)])
    (axes,) = gradient_norm_figure(scaling_curves(table), training_curves.gradient_norms(table)).axes
    assert len(axes.lines) == 4
    assert [list(line.get_ydata())[:3] for line in axes.lines] == [[1, 1 / 2, 1 / 3]] * 4
    assert axes.get_yscale() == "log"


def test_latency_counts_every_step_also_the_ones_beyond_the_edge(curves: list[Curve]) -> None:
    times = {("default", run): np.full(100, 0.1) for point in curves[0].points for run in point.runs}
    times["default", "n4x1-r0"] = np.append(np.full(99, 0.1), 60.0)
    figure = latency_figure(curves, times)
    assert len(figure.axes) == 3
    assert [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes] == [300, 300, 300]
    assert figure.axes[-1].get_xlim()[1] < 1000  # ms: one step of a minute does not squeeze the rest
    assert "max 60.0 s" in figure.axes[2].get_title(loc="right")


def test_utilization_has_a_line_a_run_of_gpus_where_there_are_any(tmp_path: Path) -> None:
    table = load([fake_sweep(tmp_path, nodes=(1, 2), repeats=2)])
    found = utilization.by_step(table)
    (axes,) = utilization_figure(scaling_curves(table), found).axes
    assert len(axes.lines) == 4
    assert axes.get_ylabel() == "busy processors"
    assert 0.8 < np.mean(axes.lines[0].get_ydata()) < 1
    gpu = found[found["run"] == "n2x1-r0"].assign(device="gpu")
    (axes,) = utilization_figure(scaling_curves(table), pd.concat([found, gpu])).axes
    assert len(axes.lines) == 1
    assert axes.get_ylabel() == "time with a running kernel"


def test_many_sizes_use_logarithmic_axes(tmp_path: Path) -> None:
    (axes,) = scaling_figure(scaling_curves(load([fake_sweep(tmp_path, nodes=(1, 4, 16), repeats=1)]))).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_saved_as_png_twice_as_sharp_as_shown(curves: list[Curve], tmp_path: Path) -> None:
    path = tmp_path / "scaling.png"
    png.save(scaling_figure(curves), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert matplotlib.image.imread(path).shape[1] == WIDTH_IN * DPI
    assert [entry.name for entry in tmp_path.glob(".*")] == []
