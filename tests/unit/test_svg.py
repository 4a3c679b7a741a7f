"""Inline SVG: scales, escaped text, marks where the data is."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats.estimates import Estimate
from analysis.svg.bars import Row, Segment, bars, stacked
from analysis.svg.distributions import ecdf_points, histogram
from analysis.svg.elements import document, element, mark, shortened, text, text_width
from analysis.svg.heat_map import LEVELS, heat_map
from analysis.svg.lines import line, points
from analysis.svg.plot import LegendItem, Plot
from analysis.svg.scales import Axis, Scale, log_ticks, round_ticks

positive = st.floats(1e-9, 1e12)


@given(positive, positive)
def test_round_ticks_lie_within_and_are_few(low, width):
    ticks = round_ticks(low, low + width)
    slack = 1e-6 * (low + width)
    assert all(low - slack <= tick <= low + width + slack for tick in ticks)
    assert len(ticks) <= 7


@given(positive, st.floats(1.01, 1e12))
def test_log_ticks_lie_within_and_are_few(low, ratio):
    high = low * ratio
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 6
    assert all(low * (1 - 1e-6) <= tick <= high * (1 + 1e-6) for tick in ticks)


def test_scales_map_both_ends_and_clip():
    linear = Scale(Axis("", 0.0, 10.0), 100.0, 200.0)
    assert [linear(value) for value in (0, 5, 10, 20, -1)] == [100, 150, 200, 200, 100]
    log = Scale(Axis("", 1.0, 16.0, log=True), 0.0, 4.0)
    assert [log(value) for value in (1, 2, 4, 16)] == pytest.approx([0, 1, 2, 4])


def test_text_and_attributes_are_escaped():
    found = element("g", text("<b>&", 1.0, 2.06, data_k='"x"'), class_="a")
    assert found == '<g class="a"><text x="1" y="2.1" data-k="&quot;x&quot;">&lt;b&gt;&amp;</text></g>'
    assert "<title>a &lt; b</title>" in mark("rect", "a < b", "run")


def test_a_document_has_title_and_description_for_screen_readers():
    svg = document("", name="f", width=10, height=5, title="T", description="D")
    root = ElementTree.fromstring(svg)
    assert root.get("aria-labelledby") == "f-title f-desc"
    assert [child.text for child in root] == ["T", "D"]


def test_long_names_are_cut():
    assert shortened("short", 100) == "short"
    cut = shortened("x" * 200, 100)
    assert cut.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert text_width(cut) <= 100


def plot_of(low=0.0, high=10.0):
    return Plot("p", "title", "description", Axis("x", 0.0, 10.0), Axis("y", low, high))


def test_a_line_leaves_a_gap_where_a_value_is_not_finite():
    path = line(plot_of(), [0, 1, 2, 3], [1, math.nan, 3, 4], "c0")
    assert path.count("M") == 2
    assert path.count("L") == 1


def test_points_have_intervals_only_where_there_is_one():
    estimates = [Estimate(5, 4, 6, 3), Estimate(5, None, None, 1)]
    found = points(plot_of(), [1, 2], estimates, "c0", ["a", "b"])
    assert found.count("<circle") == 2
    assert found.count("<path") == 1


def test_stacked_segments_follow_without_gap():
    found = stacked([(2.0, "a", ""), (0.0, "b", ""), (3.0, "c", "")])
    assert [(each.start, each.end, each.colour) for each in found] == [(0, 2, "a"), (2, 5, "c")]


def test_bars_are_as_long_as_their_values_and_go_both_ways():
    rows = [Row("up", [Segment(0, 4, "good", "g")]), Row("down", [Segment(4, 2, "bad", "b")], "text")]
    svg = bars(rows, Axis("s", 0.0, 8.0), name="n", title="t", description="d")
    root = ElementTree.fromstring(svg)
    boxes = [(float(each.get("x", 0)), float(each.get("width", 0))) for each in root.iter("rect")]
    (up_x, up), (down_x, down) = boxes
    assert up == pytest.approx(2 * down, abs=0.11)
    assert down_x == pytest.approx(up_x + down, abs=0.11)


def test_the_text_after_a_bar_stands_beside_it():
    rows = [
        Row("step", [Segment(0, 8, "good", "g")], "1,234 ms"),
        Row("part", [Segment(7, 8, "bad", "b")], "+12.5 %"),
    ]
    svg = bars(rows, Axis("s", 0.0, 8.0), name="n", title="t", description="d")
    root = ElementTree.fromstring(svg)
    ends = [float(each.get("x", 0)) + float(each.get("width", 0)) for each in root.iter("rect")]
    texts = [each for each in root.iter("text") if each.text in ("1,234 ms", "+12.5 %")]
    for end, each in zip(ends, texts, strict=True):
        assert "end" not in each.get("class", "").split()
        assert end < float(each.get("x", 0)) < 480 - text_width(each.text)


def test_a_histogram_has_one_bar_for_each_bin_with_values():
    assert histogram(plot_of(), [0, 1, 2, 3], [4, 0, 2], "c0", ["", "", ""]).count("<rect") == 2


def test_an_ecdf_is_thinned_and_ends_at_one():
    values, shares = ecdf_points(np.random.default_rng(0).lognormal(size=10_000))
    assert len(values) <= 160
    assert values == sorted(values)
    assert shares[-1] == 1.0
    with pytest.raises(ValueError, match="at least one value"):
        ecdf_points([])


def test_a_heat_map_has_a_gap_for_nan_and_the_strongest_colour_for_the_largest():
    values = np.array([[0.0, 1.0, np.nan], [0.0, 0.0, 0.0]])
    svg = heat_map(
        values, ["rank 0", "rank 1"], Axis("step", 0.0, 3.0), name="h", title="t", description="d",
        scale=(0.0, 1.0), form=str,
    )  # fmt: skip
    first, second = re.findall(r'<g data-k="rank \d">.*?</g>', svg)
    assert first.count("<path") == 2
    assert f"heat{LEVELS - 1}" in first
    assert second.count("<path") == 1
    assert second.count("z") == 1  # neighbours of one colour are one rectangle
    ElementTree.fromstring(svg)


def test_a_heat_map_of_many_ranks_stays_small():
    values = np.random.default_rng(0).random((512, 200))
    svg = heat_map(
        values, [f"rank {i}" for i in range(512)], Axis("step", 0.0, 200.0), name="h", title="t",
        description="d", scale=(0.0, 1.0), form=str,
    )  # fmt: skip
    assert len(svg) < 4_000_000  # callers join ranks and steps before (`analysis.results.lateness`)


def test_a_legend_breaks_into_rows_within_the_width():
    legend = [LegendItem(f"configuration number {i}", "c0") for i in range(6)]
    plot = plot_of()
    plot.legend = legend
    root = ElementTree.fromstring(plot.svg())
    labels = [each for each in root.iter("text") if each.get("class") == "legend"]
    assert len(labels) == 6
    assert all(float(each.get("x", 0)) + text_width(each.text or "") <= 480 for each in labels)
