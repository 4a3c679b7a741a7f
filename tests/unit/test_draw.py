"""Figures: what is drawn, read back from the axes and from the SVG of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from importlib.resources import files
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis.draw import svg
from analysis.draw.bars import Row, Segment, bars
from analysis.draw.distributions import Distribution, histograms
from analysis.draw.heat_map import heat_map
from analysis.draw.points import Dot, Guide, Line, lines, points
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
)
from analysis.stats.estimates import Estimate
from disttrain.records.steps import PHASES

SIZES = Axis("nodes", 0.0, 5.0, ticks=[1, 2, 4])
HOSTILE = '<script>&"$x$_\x07'


def throughput(estimates: Sequence[Estimate], label: str = "ddp", high: float = 400.0) -> Figure:
    shown = [Dot(label, 2**at, each, f"{label}: {each.value:g}") for at, each in enumerate(estimates)]
    other = Dot("other", 1, Estimate(50.0, 49.0, 51.0, 3), "other")
    y = Axis("samples/s", 0.0, high)
    return points([*shown, other], SIZES, y, [Guide((1, 4), (100, 400))], emulated=False)


def marks(figure: Figure, marker: str) -> list[tuple[float, float]]:
    """Positions of the points with a marker."""
    found = [line for line in figure.axes[0].lines if line.get_marker() == marker]
    return [(float(x), float(y)) for line in found for x, y in line.get_xydata()]  # type: ignore[union-attr]


def texts(element: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(element).iter("text")]


def test_points_of_several_curves_stand_beside_each_other() -> None:
    figure = throughput([Estimate(50, 49, 51, 3)])
    left, right = ([each for each in figure.axes[0].lines if each.get_marker() == marker] for marker in "os")
    ends = [line.get_transform().transform((1, 50)) for line in (left[0], right[0])]
    assert ends[1] - ends[0] == pytest.approx([5 * figure.dpi / 72, 0])


def test_a_point_without_an_interval_is_hollow() -> None:
    known = [Estimate(100, 90, 110, 3), Estimate(200, 190, 210, 3)]
    figure = throughput([*known, Estimate(300, None, None, 1)])
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() == COLOURS["bg"] for dot in dots] == [False, False, True]
    assert [round(y) for _, y in marks(figure, "_")] == [90, 110, 190, 210, 49, 51]


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow() -> None:
    figure = throughput([Estimate(100, 90, 1e6, 3), Estimate(50, -1e6, 51, 3)])
    low, high = figure.axes[0].get_ylim()
    assert [y for _, y in marks(figure, "^")] == [high]
    assert [y for _, y in marks(figure, "v")] == [low]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_the_svg_needs_no_style_and_its_texts_are_escaped() -> None:
    figure = throughput([Estimate(100, 90, 110, 3)], label=HOSTILE)
    drawn = svg.inline(figure, "scaling", HOSTILE.replace("\x07", ""), "a description")
    assert "<script" not in drawn
    assert "<style" not in drawn
    assert not re.search(r' style="|<image|font-family|#[0-9a-f]{6}"|xmlns|http', drawn)
    assert '<script>&"$x$_' in texts(drawn)
    assert 'a description"' in drawn
    root = ElementTree.fromstring(drawn)
    tooltips = {(mark.get("data-k"), mark.findtext("title")) for mark in root.iter("g")}
    assert {('<script>&"$x$_', '<script>&"$x$_: 100'), ("other", "other")} <= tooltips


def test_ids_differ_between_figures() -> None:
    figure = throughput([Estimate(100, 90, 110, 3)])
    ids = [re.findall(r' id="([^"]+)"', svg.inline(figure, name, "", "")) for name in ("a", "b")]
    assert len({*ids[0], *ids[1]}) == len(ids[0]) + len(ids[1])
    drawn = svg.inline(figure, "a", "", "")
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', drawn)) <= set(ids[0])


def test_colours_differ_and_each_has_one_for_dark_mode() -> None:
    style = files("analysis.report").joinpath("templates", "report.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+);", part)) for part in style.split("@media")[:2])
    assert light == COLOURS
    assert light.keys() == dark.keys()
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert tuple(PHASE_COLOURS) == tuple(PHASE_NAMES) == PHASES


def test_emulated_runs_are_marked() -> None:
    row = [Row("a", [Segment(0, 1, "c0", "")], "1")]
    drawn = [svg.inline(bars(row, Axis("s", 0, 1), emulated=flag), "a", "", "") for flag in (True, False)]
    assert ["emulated" in texts(each) for each in drawn] == [True, False]


def test_texts_of_bars_stay_within_the_figure() -> None:
    parts = [Segment(0, 1, "c0", "one"), Segment(1, 3, "c2", "two")]
    rows = [Row("a heading"), Row("all", parts, "3.00 s"), Row("wide", [Segment(0, 3, "c0", "")], "x" * 20)]
    figure = bars(rows, Axis("s", 0, 3), [LegendItem("one", "c0"), LegendItem("x" * 50, "c1")], emulated=True)
    figure.draw_without_rendering()
    texts = [*figure.axes[0].texts, *figure.legends[0].get_texts()]
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 3 + 2
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_an_interval_of_a_bar_is_drawn_at_its_end() -> None:
    bar = Segment(0, 1, "c0", "", Estimate(1, 0.9, 1.1, 2))
    assert marks(bars([Row("a", [bar])], Axis("s", 0, 1), emulated=False), "|") == [(0.9, 0), (1.1, 0)]


def test_a_histogram_counts_every_value_also_those_beyond_the_axis() -> None:
    values = np.array([1.0] * 30 + [2.0] * 60 + [99.0] * 10)
    figure = histograms([Distribution("4 nodes", "", values, "q0")], Axis("s", 0.0, 3.0), emulated=False)
    (shape,) = figure.axes[0].patches
    tops, edges, base = shape.get_data()  # type: ignore[attr-defined]
    heights = np.round((base - tops) / (base - tops).max() * 60)
    assert dict(zip(edges, heights, strict=False))[edges[-2]] == 10
    assert heights.sum() == 100


def test_the_heat_map_has_the_strongest_colour_where_a_value_is_high_and_none_without_one() -> None:
    values = np.array([[0.0, 0.5, 5.0], [np.nan, 0.0, 5.0]])
    names = ["0", "1"]
    figure = heat_map(
        values, names, Axis("step", 0, 3), (1.0, "1 s"), titles=["rank 0", "rank 1"], emulated=False
    )
    (cells,) = figure.axes[0].collections
    assert cells.get_alpha().tolist() == [0.5, 1.0, 1.0]  # type: ignore[union-attr]
    assert [path.vertices.tolist() for path in cells.get_paths()] == [
        [[1, 0], [2, 0]], [[2, 0], [3, 0]], [[2, 1], [3, 1]],
    ]  # fmt: skip
    drawn = svg.inline(figure, "stragglers", "", "")
    assert all(f"<title>rank {rank}</title>" in drawn for rank in names)


def test_lines_keep_gaps_dashes_and_keys() -> None:
    run = Line([1, 2, 3], [1.0, np.nan, 3.0], "c1", "n2, 2 nodes", "sweep/n2", "--")
    legend = [LegendItem("2 nodes", "c1", "--", "sweep/n2")]
    figure = lines([run], Axis("step", 0, 3), Axis("loss", 1, 10**5, log=True), legend, emulated=False)
    drawn = svg.inline(figure, "loss", "", "")
    assert drawn.count('data-k="sweep/n2"') == 3  # line, swatch and text of the legend
    assert "stroke-dasharray" in drawn
    assert "100" in texts(drawn)


def test_an_axis_of_many_sizes_has_some_ticks() -> None:
    assert size_axis("GPUs", [1, 2, 4, 2]).ticks == [1, 2, 4]
    many = size_axis("GPUs", [2.0**power for power in range(14)])
    assert (many.log, len(many.ticks or ())) == (True, 7)


def test_a_png_is_twice_as_sharp_as_shown() -> None:
    image = matplotlib.image.imread(io.BytesIO(png(throughput([Estimate(1, None, None, 1)]))))
    assert image.shape[1] == pytest.approx(WIDTH / 72 * PNG_DPI, abs=1)
