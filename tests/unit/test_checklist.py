"""The twelve rules: each can be met and missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.efficiency import scaling_curves
from analysis.report.checklist import rules
from analysis.report.sections import build_all
from analysis.runs.load import load
from analysis.study import Study
from tests.support.fake_runs import fake_run, fake_sweep


def study_of(*sweeps: Path) -> Study:
    table = load(sweeps)
    return Study(table, scaling_curves(table))


def missing(study: Study) -> dict[int, str]:
    return {each.rule: each.missing for each in rules(study, build_all(study)) if not each.met}


def test_a_sweep_with_repeats_meets_all_twelve(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path))
    assert missing(study) == {}
    assert [each.rule for each in rules(study, [])] == list(range(1, 13))


def test_one_repeat_misses_intervals_normality_and_comparison(tmp_path: Path) -> None:
    found = missing(study_of(fake_sweep(tmp_path, repeats=1)))
    assert found[5] == "3 sizes with one repeat and no interval between repeats"
    assert found[6].startswith("too few repeats to check")
    assert found[7] == "no interval between repeats of the efficiency at 2 sizes"
    assert set(found) == {5, 6, 7}


def test_runs_that_the_report_was_not_given_have_no_reason(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    chosen = {path for path in sweep.iterdir() if path.name.startswith(("n1", "n2"))}
    table = load([sweep], only=chosen)
    found = missing(Study(table, scaling_curves(table)))
    assert found[2] == "no reason for 3 runs of the sweep that the report was not given"


def test_one_size_has_no_bound(tmp_path: Path) -> None:
    assert missing(study_of(fake_sweep(tmp_path, nodes=(2,))))[11] == "no ideal line: one size alone"


def test_a_missing_base_an_unknown_factor_and_a_method_are_named(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path, comm_method=None, dataset=None))
    study = replace(study, recorded_curves=[replace(curve, base_size=None) for curve in study.curves])
    found = missing(study)
    assert found[1] == "no base for default"
    assert found[9] == "not recorded for all runs: dataset_sha256"
    assert found[10] == "no method of communication time for 6 runs"


def test_a_repeat_far_from_the_others_is_not_normal(tmp_path: Path) -> None:
    for nodes in (1, 2, 4):
        for repeat, mean_s in enumerate([0.1, 0.1001, 0.1002, 0.1001, 0.1, 0.3]):
            fake_run(tmp_path / "s" / f"n{nodes}-r{repeat}", nodes=nodes, repeat=repeat, mean_s=mean_s)
    assert missing(study_of(tmp_path / "s"))[6].startswith("logarithms of throughput are not normal")


@pytest.mark.parametrize("rule", range(1, 13))
def test_nothing_finished_meets_no_rule(tmp_path: Path, rule: int) -> None:
    fake_run(tmp_path / "s" / "n1", end="planned")
    assert missing(study_of(tmp_path / "s"))[rule] == "no finished run"
