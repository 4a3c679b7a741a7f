"""Tables say once what holds for all rows."""

from __future__ import annotations

from analysis.report.cells import Cell
from analysis.report.compact import constant, shared_note
from analysis.report.section import Column, Table
from analysis.report.views import table_view
from analysis.stats.estimates import Estimate


def test_a_column_is_constant_only_from_three_rows_on():
    assert constant([Cell("0 s")] * 3)
    assert not constant([Cell("0 s")] * 2)
    assert not constant([Cell("0 s"), Cell("0 s"), Cell("1 s")])


def test_a_note_of_all_estimates_leaves_the_cells_and_bounds_stay():
    note, cells = shared_note(
        [Cell("1 s", "n=1, no interval", "n=1"), Cell("2 s", "n=1, no interval", "n=1")]
    )
    assert note == "n=1, no interval"
    assert cells == [Cell("1 s"), Cell("2 s")]
    within = [
        Cell("1 s", "[0, 2] within the run", "n=1"),
        Cell("1.00"),
        Cell("3 s", "[2, 4] within the run", "n=1"),
    ]
    note, cells = shared_note(within)
    assert note == "within the run, n=1"
    assert cells == [Cell("1 s", "[0, 2]"), Cell("1.00"), Cell("3 s", "[2, 4]")]


def test_estimates_without_bounds_keep_their_reason_beside_a_shared_note():
    column = [
        Cell("1 s", "[0, 2] within the run", "n=1"),
        Cell("2 s", "n=1, no interval", "n=1"),
        Cell("3 s", "[2, 4] within the run", "n=1"),
    ]
    note, cells = shared_note(column)
    assert note == "within the run, n=1"
    assert [cell.line for cell in cells] == ["1 s [0, 2]", "2 s, no interval", "3 s [2, 4]"]
    other = [*column, Cell("4 s", "n=2, no interval", "n=2")]
    assert shared_note(other) == ("", other)


def test_a_note_of_all_columns_is_said_once_for_the_table():
    columns = [Column("size", "size", "count", key=True), Column("a", "a", "s"), Column("b", "b", "s")]
    one, two = (Estimate(1.0, 0.5, 2.0, repeats) for repeats in (1, 2))
    view = table_view(Table("t", "caption", columns, [[1, one, one], [2, one, one]]))
    assert view.note == "n=1"
    assert [head.note for head in view.heads] == ["", "", ""]
    for rows in ([[1, one, two], [2, one, two]], [[1, one, one], [2, one, two]]):
        assert table_view(Table("t", "caption", columns, rows)).note == ""
    same = table_view(Table("t", "caption", columns, [[size, one, one] for size in (1, 2, 3)]))
    assert (same.note, [text for _, text in same.same]) == ("n=1", ["1.00 s [0.500, 2.00]"] * 2)
    alone = table_view(Table("t", "caption", columns[:2], [[1, one], [2, one]]))
    assert (alone.note, alone.heads[1].note) == ("", "n=1")


def test_notes_that_differ_stay_in_the_cells():
    cells = [Cell("1 s", "[0, 2]", "n=3"), Cell("2 s", "[1, 3]", "n=2")]
    assert shared_note(cells) == ("", cells)


def test_columns_of_one_text_are_left_out_and_named_but_keys_stay():
    columns = [
        Column("curve", "configuration", key=True),
        Column("size", "nodes", "count", key=True),
        Column("checkpoint_s", "checkpoint", "s", "phases"),
        Column("step_s", "step", "s"),
    ]
    rows = [["a", 1, 0.0, Estimate(index, None, None, 1)] for index in (1.0, 2.0, 3.0)]
    view = table_view(Table("t", "caption", columns, rows))
    assert [head.text for head in view.heads] == ["configuration", "nodes", "step"]
    assert [(head.text, text) for head, text in view.same] == [("checkpoint", "0 µs")]
    assert view.heads[-1].note == "n=1, no interval"
    assert [row[-1].cell.line for row in view.rows] == ["1.00 s", "2.00 s", "3.00 s"]
    few = table_view(Table("t", "caption", columns, rows[:2]))
    assert len(few.heads) == 4


def test_ratio_and_verdict_stay_and_a_column_of_empty_texts_goes():
    columns = [
        Column("size", "size", key=True),
        Column("ratio", "ratio", "ratio"),
        Column("verdict", "verdict"),
        Column("reason", "reason"),
    ]
    for count in (1, 3):
        view = table_view(
            Table("t", "caption", columns, [[f"{n} nodes", 0.9, "slower", ""] for n in range(count)])
        )
        assert [head.text for head in view.heads] == ["size", "ratio", "verdict"]
        assert view.same == []
    mixed = table_view(
        Table("t", "caption", columns, [["1 node", 0.9, "slower", ""], ["2", 1.0, "unsettled", "x"]])
    )
    assert [row[-1].cell.line for row in mixed.rows] == ["", "x"]


def test_a_table_of_names_alone_becomes_a_sentence():
    columns = [Column("curve", "configuration", key=True), Column("loss", "training loss", "loss")]
    same = table_view(Table("t", "Losses.", columns, [[name, 0.6931] for name in "abc"]))
    assert same.names_only
    differs = table_view(Table("t", "Losses.", columns, [["a", 0.5], ["b", 0.6931], ["c", 0.6931]]))
    assert not differs.names_only
    assert not table_view(Table("t", "Names.", columns[:1], [["a"], ["b"], ["c"]])).names_only
