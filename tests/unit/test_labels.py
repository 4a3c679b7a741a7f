"""Labels of figures: no label covers another, a tick or a point, and none leaves the canvas."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.svg.labels import Box, Label, along, distinct, placed, point_labels, spread
from analysis.svg.plot import Plot
from analysis.svg.scales import Axis

CANVAS = Box(58.0, 20.0, 480.0, 258.0)

points = st.builds(
    Label,
    st.text("bucket_m 0123456789,", min_size=1, max_size=30),
    st.floats(CANVAS.left, CANVAS.right),
    st.floats(CANVAS.top, CANVAS.bottom),
)
obstacles = st.builds(
    lambda x, y, width, height: Box(x, y, x + width, y + height),
    st.floats(0, 480),
    st.floats(0, 300),
    st.floats(1, 60),
    st.floats(1, 20),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(points, max_size=10), st.lists(obstacles, max_size=6))
def test_no_label_overlaps_or_leaves_the_canvas(labels, taken):
    places = placed(labels, CANVAS, taken)
    assert len(places) == len(labels)
    boxes = [place.box for place in places if place is not None]
    assert all(box.within(CANVAS) for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert not any(box.overlaps(other) for box in boxes for other in taken)
    for box in boxes:
        assert not any(box.left < each.x < box.right and box.top < each.y < box.bottom for each in labels)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(150, 370), st.floats(90, 190)), max_size=8))
def test_eight_short_labels_away_from_the_edges_all_have_a_place(at):
    labels = [Label(f"{2**index} nodes", x, y) for index, (x, y) in enumerate(at)]
    assert None not in placed(labels, CANVAS)


def test_a_label_alone_stands_at_the_right_of_its_point_and_at_the_edge_at_the_left():
    (middle,) = placed([Label("8 nodes", 200.0, 100.0)], CANVAS)
    (edge,) = placed([Label("8 nodes", 475.0, 100.0)], CANVAS)
    assert middle is not None
    assert edge is not None
    assert (middle.anchor, middle.box.left) == ("start", 208.0)
    assert (edge.anchor, edge.box.right) == ("end", 467.0)


def test_points_at_one_place_have_both_labels_and_a_line_to_the_farther_one():
    plot = Plot("p", "title", "description", Axis("x", 0.0, 1.0), Axis("y", 0.0, 1.0))
    svg = point_labels(plot, [Label(str(index), 200.0, 100.0) for index in range(12)])
    assert re.findall(r">(\d+)</text>", svg) == [str(index) for index in range(12)]
    assert svg.count("<line") > 0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 200), max_size=12), st.floats(1, 15))
def test_spread_positions_keep_gap_range_and_order(wanted, gap):
    found = spread(wanted, gap, 0.0, 200.0)
    assert found is not None
    assert all(-1e-9 <= each <= 200 + 1e-9 for each in found)
    in_order = [found[index] for index in sorted(range(len(wanted)), key=lambda index: wanted[index])]
    assert all(after - before >= gap - 1e-9 for before, after in itertools.pairwise(in_order))


def test_positions_far_apart_stay_and_too_many_have_none():
    assert spread([90.0, 10.0, 50.0], 17.0, 0.0, 100.0) == [90.0, 10.0, 50.0]
    assert spread([1.0, 2.0, 3.0], 60.0, 0.0, 100.0) is None
    assert spread([], 17.0, 0.0, 100.0) == []
    assert spread([400.0], 17.0, 0.0, 100.0) == pytest.approx([100.0])


def test_boxes_along_a_line_keep_its_labels_off_the_line():
    line = [(100.0, 100.0), (300.0, 140.0), (310.0, 240.0)]
    boxes = along(line)
    assert all(any(box.left <= x <= box.right for box in boxes) for x in range(100, 311))
    (place,) = placed([Label("2 nodes", *line[1])], CANVAS, boxes)
    assert place is not None
    assert not any(place.box.overlaps(box) for box in boxes)


def test_points_that_cover_each_other_have_one_label_where_the_texts_are_equal():
    labels = [Label("1 node", 100.0, 100.0), Label("1 node", 104.0, 98.0), Label("2 nodes", 104.0, 98.0)]
    assert distinct(labels) == [labels[0], labels[2]]
