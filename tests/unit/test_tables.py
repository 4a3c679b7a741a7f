"""Tables say once the repeats of all rows, and fold where they are long."""

from __future__ import annotations

from analysis.report.section import Column, Table
from analysis.report.tables import TableView, table_view
from analysis.stats.estimates import Estimate

COLUMNS = [Column("size", "size", "count", key=True), Column("a", "a", "s"), Column("b", "b", "s")]
ONE, TWO = (Estimate(1.0, 0.5, 2.0, repeats) for repeats in (1, 2))


def view(*rows: list[object], columns: list[Column] = COLUMNS) -> TableView:
    return table_view(Table("t", "Caption.", columns, rows))  # type: ignore[arg-type]


def test_repeats_of_all_estimates_are_said_once() -> None:
    shown = view([1, ONE, ONE], [2, ONE, ONE])
    assert shown.words == "Caption. Estimates: n=1."
    assert shown.rows[0][1][1].line == "1.00 s [0.500, 2.00]"
    mixed = view([1, ONE, ONE], [2, ONE, TWO])
    assert mixed.words == "Caption."
    assert mixed.rows[1][2][1].line == "1.00 s [0.500, 2.00], n=2"
    alone = view([1, Estimate(1.0, None, None, 1), None])
    assert alone.rows[0][1][1].line == "1.00 s"


def test_a_table_drops_empty_columns_limits_its_rows_and_folds() -> None:
    columns = [Column("a", "a", "count"), Column("b", "b", "s"), Column("c", "c", "s", "step-time")]
    shown = view(*([i, None, 1.0 + i] for i in range(300)), columns=columns)
    assert [column.heading for column in shown.columns] == ["a", "c"]
    assert (len(shown.rows), shown.left_out) == (100, 200)
    assert shown.folded
    assert not view([1, ONE, TWO]).folded


def test_durations_of_a_column_have_one_unit_but_for_those_below_a_thousandth() -> None:
    step = [Column("part", "part"), Column("step_s", "step", "s")]
    rows = [["a", Estimate(0.0291, 0.028, 0.03, 3)], ["b", 0.000578], ["c", 0.0], ["d", 0.00001]]
    texts = [cells[1][1].text for cells in view(*rows, columns=step).rows]
    assert texts == ["29.1 ms", "0.578 ms", "0 ms", "10.0 µs"]
    wide = view(["a", 0.0632], ["b", Estimate(0.112, 0.0121, 1.03, 2)], columns=step)
    assert wide.rows[1][1][1].line == "112 ms [12.1, 1\N{NARROW NO-BREAK SPACE}030]"
