"""The section of bottlenecks: a ceiling with an interval and advice, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.report.section import Section
from analysis.report.sections import bottlenecks
from analysis.study import make_study
from tests.support.fake_runs import fake_run, fake_sweep
from tests.support.straggler_records import delays
from tests.unit.test_stragglers_section import HOSTS, STEPS, write_run


def section_of(sweep: Path, *, alone: bool = False) -> Section:
    """The section; `alone`: of runs that did not overlap in time."""
    table = load_runs([sweep])
    study = make_study(table)
    if alone:
        study.__dict__["overlaps"] = []
    section = bottlenecks.build(study)
    assert section is not None
    return section


def test_significant_parts_are_listed_by_their_ceiling(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path))
    (table,) = section.tables
    assert [row[1] for row in table.rows] == ["data transfer", "waiting for peers", "input", "other"]
    assert section.conclusion.startswith("Communicate less: compressed gradients (parallel.gradient_")


def test_options_follow_what_the_sweep_measured_of_them(tmp_path: Path) -> None:
    axes = [{"parallel.ddp.bucket_mb": 4}, {"parallel.ddp.bucket_mb": 32}]  # 32 is a tenth slower
    (table,) = section_of(fake_sweep(tmp_path, axes=axes)).tables
    advice = {str(row[0]): str(row[-1]) for row in table.rows if row[2] == "data transfer"}
    assert advice["bucket_mb 32"].startswith(
        "Communicate less: parallel.ddp.bucket_mb=4 (measured here: 1.10"
    )
    assert "bucket_mb" not in advice["bucket_mb 4"]
    assert "hierarchical" not in " ".join(advice.values())  # one rank a node has nothing to combine


def test_runs_at_one_time_on_a_node_are_to_be_measured_alone(tmp_path: Path) -> None:
    for nodes, mean_s in ((1, 0.1), (2, 0.2)):
        fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, mean_s=mean_s, hosts=["c00", "c01"][:nodes])
    assert section_of(tmp_path / "s").conclusion.startswith("Measure these sizes alone first: other runs ")


def test_nothing_is_named_where_nothing_is_significant(tmp_path: Path) -> None:
    section = section_of(fake_sweep(tmp_path, efficiency=1.0, composition={"compute_s": 0.1}))
    assert section.tables == []
    assert section.conclusion == "Nothing is shown to take more than 1 % of a step at 4 ranks."


def test_one_repeat_shows_ceilings_without_judging_them(tmp_path: Path) -> None:
    (table,) = section_of(fake_sweep(tmp_path, repeats=1)).tables
    assert table.rows[0][1] == "data transfer"
    assert table.rows[0][2].low is None


def test_named_stragglers_are_one_bottleneck_with_their_cost(tmp_path: Path) -> None:
    for repeat in range(2):
        fake_run(tmp_path / "s" / f"n1-r{repeat}", mean_s=0.16, repeat=repeat)
        added = delays(4, STEPS, slow=[1], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat)
    section = section_of(tmp_path / "s", alone=True)
    (table,) = section.tables
    rows = {str(row[1]): row for row in table.rows}
    row = rows["the stragglers' compute and waiting"]
    assert row[2].value == pytest.approx(0.22, abs=0.02)
    assert row[-1] == "Leave the slow rank's node out of the next job."
    assert "waiting for peers" not in rows


def test_a_rank_that_is_slow_on_each_node_is_no_reason_to_leave_a_node_out(tmp_path: Path) -> None:
    for repeat in range(3):
        fake_run(tmp_path / "s" / f"n1-r{repeat}", mean_s=0.16, repeat=repeat)
        added = delays(4, STEPS, slow=[1], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat, hosts=[*HOSTS[repeat:], *HOSTS[:repeat]])
    (table,) = section_of(tmp_path / "s", alone=True).tables
    (advice,) = [row[-1] for row in table.rows if row[1] == "the stragglers' compute and waiting"]
    assert advice.endswith("it is slow on several nodes.")


def test_the_rest_beside_the_stragglers_stays_in_the_table(tmp_path: Path) -> None:
    """Every rank computes 40 ms longer than the base, rank 1 another 50 ms."""
    for repeat in range(2):
        fake_run(tmp_path / "s" / f"n1-r{repeat}", mean_s=0.14, repeat=repeat)
        added = 0.04 + delays(4, STEPS, slow=[1], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat)
    (table,) = section_of(tmp_path / "s", alone=True).tables
    shares = {str(row[1]): row[2].value for row in table.rows}
    step_s, base_s = 0.12 + 0.04 + 0.05 + 0.013 + 0.03, 0.86 * 0.14
    assert shares["the stragglers' compute and waiting"] == pytest.approx(0.05 / step_s, abs=0.03)
    rest = shares["compute, without the stragglers' part"]
    assert rest == pytest.approx((0.12 + 0.04 - base_s) / step_s, abs=0.03)
    advice = {str(row[1]): str(row[-1]) for row in table.rows}
    assert "slow rank" in advice["the stragglers' compute and waiting"]
    assert "slow rank" not in advice["compute, without the stragglers' part"]
