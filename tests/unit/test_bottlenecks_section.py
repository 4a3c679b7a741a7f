"""The section of bottlenecks: a ceiling with an interval and advice, or nothing."""

from __future__ import annotations

from pathlib import Path

from analysis.efficiency import scaling_curves
from analysis.report.section import Section
from analysis.report.sections import bottlenecks
from analysis.runs.load import load
from analysis.study import Study
from tests.support.fake_runs import fake_sweep


def section_of(sweep: Path) -> Section:
    table = load([sweep])
    section = bottlenecks.build(Study(table, scaling_curves(table)))
    assert section is not None
    return section


def test_the_highest_ceiling_is_named_with_an_option(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path))
    assert section.conclusion.startswith("At 4 nodes, data transfer has the highest ceiling: at most 26 %")
    (table,) = section.tables
    assert [row[1] for row in table.rows] == ["data transfer", "waiting for peers", "input", "other"]
    assert "parallel.ddp.bucket_mb" in str(table.rows[0][-1])


def test_nothing_is_named_where_nothing_is_significant(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path, composition={"compute_s": 0.1}))
    assert section.tables == []
    assert section.conclusion.startswith("No bottleneck is significant at 4 nodes, by 3 repeats")


def test_one_repeat_shows_ceilings_without_judging_them(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path, repeats=1))
    assert "one repeat gives no interval" in section.conclusion
    (table,) = section.tables
    assert table.rows[0][1] == "data transfer"
