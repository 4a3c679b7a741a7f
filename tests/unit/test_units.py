"""Numbers as the reports print them: unit, digits, intervals; tables state common repeats once and fold."""

from __future__ import annotations

from typing import Any

import pytest

from analysis import units
from analysis.report.section import Column, Table
from analysis.report.tables import TableView, table_view
from analysis.stats.estimates import Estimate
from analysis.units import Cell, Unit, cell

COLUMNS = [Column("size", "size", "count", key=True), Column("a", "a", "s"), Column("b", "b", "s")]
ONE, TWO = (Estimate(1.0, 0.5, 2.0, repeats) for repeats in (1, 2))


def view(*rows: list[Any], columns: list[Column] = COLUMNS) -> TableView:
    return table_view(Table("t", "Caption.", columns, rows))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "\N{EN DASH}"), (float("nan"), "share", "\N{EN DASH}"), (True, "", "yes"),
        ("text", "", "text"), (1234, "count", "1,234"),
        (0, "number", "0"), (0.0412, "number", "0.0412"), (7.0, "number", "7.00"), (77.64, "number", "77.6"),
        (999.7, "number", "1,000"), (12_345, "number", "12,300"),
        (1.2, "s", "1.20 s"), (0.0412, "s", "41.2 ms"), (31e-6, "s", "31.0 µs"), (90, "s", "90.0 s"),
        (0.0009996, "s", "1.00 ms"), (0.0, "s", "0 s"), (-1.39e-17, "s", "0 µs"),
        (0.12, "span", "120 ms"), (42, "span", "42.0 s"), (90.0, "span", "1.50 min"),
        (9360, "span", "2.60 h"),
        (0.913, "share", "91.3 %"), (-1e-9, "share", "0.0 %"),
        (-0.02, "points", "-2.0 pp"), (-1e-9, "points", "0.0 pp"), (0.00214, "points", "+0.2 pp"),
        (13.901, "points", "+1,390.1 pp"),
        (2.871, "ratio", "2.87\N{MULTIPLICATION SIGN}"),
        (5.1e8, "B/s", "510 MB/s"), (9.89e14, "FLOP/s", "989 TFLOP/s"), (2**30, "B", "1.00 GiB"),
        (12, "B", "12.0 B"),
        (1.23456, "loss", "1.2346"), (31.4, "W", "31.4 W"), (4_206_592, "magnitude", "4.21 M"),
        (-0.00123, "currency", "-0.00123"), (0.000009999, "currency", "0.0000100"), (-1e-9, "currency", "0"),
        (0.000398, "g", "398 µg"), (0.0, "g", "0 g"), (1234.0, "g", "1.23 kg"),
    ],
)  # fmt: skip
def test_values_have_their_unit(value: Any, unit: Unit, text: str) -> None:
    assert cell(value, unit) == Cell(text)


@pytest.mark.parametrize(
    ("value", "unit", "line"),
    [
        (Estimate(0.913, 0.901, 0.924, 3), "share", "91.3 % [90.1, 92.4], n=3"),
        (Estimate(1234, 1200, 12345, 3), "number", "1,230 [1\u202f200, 12\u202f300], n=3"),
        (Estimate(458e-6, 0, 11.4e-3, 1, "within run"), "s", "0.458 ms [0, 11.4] within the run, n=1"),
        (Estimate(-1e-17, -1.39e-17, 1e-17, 3), "s", "0 µs [0, 0], n=3"),
        (Estimate(-1e-9, -1e-8, 1e-8, 3), "points", "0.0 pp [0.0, 0.0], n=3"),
        (Estimate(5e9, 4e9, 6e9, 4), "B/s", "5.00 GB/s [4.00, 6.00], n=4"),
        (Estimate(90, 60, 120, 2), "span", "1.50 min [1.00, 2.00], n=2"),
        (Estimate(0.0123, 0.00098, 0.02, 3), "g", "12.3 mg [0.980, 20.0], n=3"),
        (Estimate(2, None, None, 3), "ratio", "2.00\N{MULTIPLICATION SIGN}, no interval, n=3"),
        (Estimate(2, None, None, 3, "maximum"), "B", "2.00 B, maximum, n=3"),
        (Estimate(2, None, None, 3, "not stationary"), "B", "2.00 B, not stationary, no interval, n=3"),
    ],
)
def test_estimates_have_interval_and_repeats_in_the_unit_of_the_value(
    value: Estimate, unit: Unit, line: str
) -> None:
    assert cell(value, unit).line == line


def test_words_around_numbers() -> None:
    assert [units.plural(1, "node"), units.plural(1200, "sample")] == ["1 node", "1,200 samples"]
    assert [units.listed(["a"]), units.listed(["a", "b", "c"])] == ["a", "a, b and c"]
    assert [units.short_count(16_384), units.short_count(7e9)] == ["16,384", "7.00 G"]
    assert cell(Estimate(0.5, 0.4, 0.6, 3), "share").in_text == "50.0 % ([40.0, 60.0], n=3)"


def test_repeats_of_all_estimates_are_said_once() -> None:
    shown = view([1, ONE, ONE], [2, ONE, ONE])
    assert (shown.words, shown.rows[0][1][1].line) == ("Caption. Estimates: n=1.", "1.00 s [0.500, 2.00]")
    mixed = view([1, ONE, ONE], [2, ONE, TWO])
    assert (mixed.words, mixed.rows[1][2][1].line) == ("Caption.", "1.00 s [0.500, 2.00], n=2")
    for repeats, line in ((1, "1.00 s"), (2, "1.00 s, no interval")):
        assert view([1, Estimate(1.0, None, None, repeats), None]).rows[0][1][1].line == line


def test_a_table_drops_empty_columns_limits_its_rows_and_folds() -> None:
    shown = view(*([at, None, 1.0 + at] for at in range(300)))
    assert [column.name for column in shown.columns] == ["size", "b"]
    assert (len(shown.rows), shown.left_out, shown.folded) == (100, 200, True)
    assert [view(*[[1, ONE, TWO]] * rows).folded for rows in (8, 9)] == [False, True]


def test_durations_of_a_column_have_one_unit_but_for_those_below_a_thousandth() -> None:
    rows: list[list[Any]] = [
        [1, 0.0, Estimate(0.0291, 0.028, 0.03, 3)],
        [2, 0.0, 0.000578],
        [3, 0.0, 0.0],
        [4, 0.0, 0.00001],
    ]
    texts = [cells[2][1].text for cells in view(*rows).rows]
    assert texts == ["29.1 ms", "0.578 ms", "0 ms", "10.0 µs"]
