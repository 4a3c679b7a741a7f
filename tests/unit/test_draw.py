"""Figures: what is drawn, read back from the axes and from the SVG of the page."""

from __future__ import annotations

import io
import re
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.draw import svg
from analysis.draw.charts import (
    Distribution,
    Dot,
    Guide,
    Line,
    Row,
    Segment,
    bars,
    extent,
    heat_map,
    histograms,
    lines,
    points,
)
from analysis.draw.style import (
    COLOURS,
    PHASE_COLOURS,
    PHASE_NAMES,
    PNG_DPI,
    WIDTH,
    Axis,
    LegendItem,
    png,
    size_axis,
    value_axis,
)
from analysis.stats.estimates import Estimate
from disttrain.records.steps import PHASES

HOSTILE = '<script>&"$x$_\x07'
BAR = Row("a", [Segment(0, 1, "c0", "", Estimate(1, 0.9, 1.1, 2))], "1")


def throughput(*estimates: Estimate, label: str = "ddp") -> Figure:
    """Estimates at 1, 2 and 4 nodes, and one of another curve at 1 node."""
    shown = [Dot(label, 2**at, each, f"{label}: {each.value:g}") for at, each in enumerate(estimates)]
    other = Dot("other", 1, Estimate(50.0, 49.0, 51.0, 3), "other")
    x, y = Axis("nodes", 0.0, 5.0, ticks=[1, 2, 4]), Axis("samples/s", 0.0, 400.0)
    return points([*shown, other], x, y, [Guide((1, 4), (100, 400))], emulated=False)


def marks(figure: Figure, marker: str) -> list[tuple[float, float]]:
    """Positions of the points with a marker."""
    found: list[Any] = [line for line in figure.axes[0].lines if line.get_marker() == marker]
    return [(float(x), float(y)) for line in found for x, y in line.get_xydata()]


def texts(element: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(element).iter("text")]


def test_points_of_several_curves_stand_beside_each_other() -> None:
    left, right = (
        next(
            line for line in throughput(Estimate(50, 49, 51, 3)).axes[0].lines if line.get_marker() == marker
        )
        for marker in "os"
    )
    shift = right.get_transform().transform((1, 50)) - left.get_transform().transform((1, 50))
    assert shift == pytest.approx([5 * right.figure.dpi / 72, 0])


def test_a_point_without_an_interval_is_hollow_and_the_ideal_is_dashed() -> None:
    known = [Estimate(100, 90, 110, 3), Estimate(200, 190, 210, 3)]
    figure = throughput(*known, Estimate(300, None, None, 1))
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() == COLOURS["bg"] for dot in dots] == [False, False, True]
    assert [round(y) for _, y in marks(figure, "_")] == [90, 110, 190, 210, 49, 51]
    (ideal,) = [line for line in figure.axes[0].lines if line.is_dashed()]
    assert ideal.get_xydata().tolist() == [[1, 100], [4, 400]]


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow_and_does_not_widen_it() -> None:
    wide = [Estimate(100, 90, 1e6, 3), Estimate(50, -1e6, 51, 3)]
    figure = throughput(*wide)
    low, high = figure.axes[0].get_ylim()
    assert [y for _, y in marks(figure, "^")] == [high]
    assert [y for _, y in marks(figure, "v")] == [low]
    assert extent(wide) == (25, 150)
    assert extent([Estimate(100, 90, 110, 3), Estimate(50, None, None, 1)]) == (50, 110)


@pytest.mark.filterwarnings("ignore:Glyph")
def test_the_svg_needs_no_style_and_its_texts_are_escaped() -> None:
    drawn = svg.inline(
        throughput(Estimate(100, 90, 110, 3), label=HOSTILE), "scaling", HOSTILE, "a description"
    )
    assert not re.search(r' style="|<style|<script|<image|font-family|#[0-9a-f]{6}"|xmlns|http', drawn)
    assert '<script>&"$x$_' in texts(drawn)
    assert 'a description"' in drawn
    tooltips = {
        (mark.get("data-k"), mark.findtext("title")) for mark in ElementTree.fromstring(drawn).iter("g")
    }
    assert {('<script>&"$x$_', '<script>&"$x$_: 100'), ("other", "other")} <= tooltips


def test_ids_differ_between_figures() -> None:
    figure = throughput(Estimate(100, 90, 110, 3))
    drawn = [svg.inline(figure, name, "", "") for name in ("a", "b")]
    ids, others = (set(re.findall(r' id="([^"]+)"', each)) for each in drawn)
    assert ids
    assert not ids & others
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', drawn[0])) <= ids


def test_colours_differ_and_each_has_one_for_dark_mode() -> None:
    style = files("analysis.report").joinpath("templates", "report.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+);", part)) for part in style.split("@media")[:2])
    assert light == COLOURS
    assert light.keys() == dark.keys()
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert tuple(PHASE_COLOURS) == tuple(PHASE_NAMES) == PHASES


def test_emulated_runs_are_marked() -> None:
    drawn = [svg.inline(bars([BAR], "time", "s", emulated=flag), "a", "", "") for flag in (True, False)]
    assert ["emulated" in texts(each) for each in drawn] == [True, False]


def test_bars_have_their_intervals_and_their_texts_stay_within_the_figure() -> None:
    parts = [Segment(0, 1, "c0", "one"), Segment(1, 3, "c2", "two")]
    rows = [BAR, Row("a heading"), Row("all", parts, "3.00 s"), Row("wide", parts, "x" * 20)]
    figure = bars(rows, "time", "s", [LegendItem("one", "c0"), LegendItem("x" * 50, "c1")], emulated=True)
    assert marks(figure, "|") == [(0.9, 0), (1.1, 0)]
    figure.draw_without_rendering()
    shown = [*figure.axes[0].texts, *figure.legends[0].get_texts()]
    boxes = [text.get_window_extent() for text in shown]
    assert len(boxes) == 4 + 2
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_a_histogram_counts_every_value_also_those_beyond_the_axis() -> None:
    values = np.array([1.0] * 30 + [2.0] * 60 + [99.0] * 10)
    figure = histograms([Distribution("4 nodes", "", values, "q0")], Axis("s", 0.0, 3.0), emulated=False)
    (shape,) = figure.axes[0].patches
    tops, _, base = shape.get_data()  # type: ignore[attr-defined]
    heights = np.round((base - tops) / (base - tops).max() * 60)
    assert (heights[-1], heights.sum()) == (10, 100)


def test_the_heat_map_has_the_strongest_colour_where_a_value_is_high_and_none_without_one() -> None:
    values = np.array([[0.0, 0.5, 5.0], [np.nan, 0.0, 5.0]])
    figure = heat_map(
        values, ["0", "1"], Axis("step", 0, 3), (1.0, "1 s"), titles=["rank 0", "rank 1"], emulated=False
    )
    cells: Any = figure.axes[0].collections[0]
    assert cells.get_alpha().tolist() == [0.5, 1.0, 1.0]
    ends = [path.vertices.tolist() for path in cells.get_paths()]
    assert ends == [[[1, 0], [2, 0]], [[2, 0], [3, 0]], [[2, 1], [3, 1]]]
    assert "<title>rank 1</title>" in svg.inline(figure, "stragglers", "", "")


def test_lines_keep_gaps_dashes_and_keys() -> None:
    run = Line([1, 2, 3], [1.0, np.nan, 3.0], "c1", "n2, 2 nodes", "sweep/n2", "--")
    legend = [LegendItem("2 nodes", "c1", "--", "sweep/n2")]
    figure = lines([run], Axis("step", 0, 3), Axis("loss", 1, 10**5, log=True), legend, emulated=False)
    drawn = svg.inline(figure, "loss", "", "")
    assert drawn.count('data-k="sweep/n2"') == 3  # line, swatch and text of the legend
    assert drawn.count("stroke-dasharray") == 2, "the line and its swatch"
    assert "100" in texts(drawn)


def test_axes_fit_their_values() -> None:
    few, many = size_axis("GPUs", [1, 2, 8, 2]), size_axis("GPUs", [2.0**power for power in range(14)])
    assert (few.ticks, few.log, few.low > 0) == ([1, 2, 8], False, True)
    assert (len(many.ticks or ()), many.log, many.low > 0) == (7, True, True)
    assert size_axis("GPUs", [1, 9]).log
    assert size_axis("GPUs", [4]).low < 4
    assert [value_axis("s", low, 10).low == 0 for low in (4, 6)] == [True, False]
    assert value_axis("s", -2, 10).low == -2
    assert value_axis("s", 1, 10, log=True).low > 0


def test_a_png_is_twice_as_sharp_as_shown() -> None:
    image = matplotlib.image.imread(io.BytesIO(png(throughput(Estimate(1, None, None, 1)))))
    assert image.shape[1] == pytest.approx(WIDTH / 72 * PNG_DPI, abs=1)
