"""Stationarity and within-run intervals of runs: from step records to the figures and sentences."""

from __future__ import annotations

from pathlib import Path

from analysis.read.load import load_runs
from analysis.report.first_screen import headline
from analysis.report.model import plain
from analysis.results import targets
from analysis.results.curves import Curve, scaling_curves
from analysis.step_statistics import step_statistics
from analysis.study import make_study
from analysis.units import cell
from disttrain.records.json_files import write_json
from tests.support.fake_runs import fake_run, fake_sweep, reshape


def drifting(step: int) -> float:
    return 1 + step / 100


def curve_of(sweep: Path) -> Curve:
    (curve,) = make_study(load_runs([sweep])).curves
    return curve


def targets_of(sweep: Path) -> list[targets.TargetResult]:
    study = make_study(load_runs([sweep]))
    return targets.required(study.runs, study.curves)


def test_generated_runs_are_stationary_and_their_figures_unchanged(tmp_path: Path) -> None:
    table = load_runs([fake_sweep(tmp_path)])
    statistics = step_statistics(table)
    assert {each.stationarity.verdict for each in statistics.values()} == {"stationary"}
    assert {each.measured_steps for each in statistics.values()} == {100}
    assert plain(scaling_curves(table, None, statistics)) == plain(scaling_curves(table))


def test_a_size_with_a_drifting_run_keeps_its_value_and_loses_its_interval(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    before = curve_of(sweep)
    reshape(sweep / "n4x1-r1", drifting)
    after = curve_of(sweep)
    assert [plain(point) for point in after.points[:2]] == [plain(point) for point in before.points[:2]]
    four = after.points[2]
    for estimate in (four.samples_per_s, four.step_s, four.speedup, four.efficiency):
        assert estimate is not None
        assert (estimate.basis, estimate.low, estimate.high) == ("not stationary", None, None)
    assert headline(make_study(load_runs([sweep])), after) == (
        "No statement: at 4 ranks, the step time rises by 59 % from start to end"
    )
    assert cell(four.efficiency, "share").interval == "not stationary, no interval"


def test_a_base_that_is_not_stationary_takes_all_efficiencies_with_it(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    reshape(sweep / "n1x1-r0", drifting)
    _, two, four = curve_of(sweep).points
    assert [each.efficiency.basis for each in (two, four) if each.efficiency] == ["not stationary"] * 2
    assert two.samples_per_s.basis == "repeats"


def test_few_steps_are_published_and_said(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1-r0", steps=40)
    fake_run(tmp_path / "s" / "n1-r1", steps=40, repeat=1, mean_s=0.11)
    study = make_study(load_runs([tmp_path / "s"]))
    assert study.curves[0].points[0].samples_per_s.low is not None
    kinds = {each.kind: each.numbers for each in study.caveats}
    assert kinds["few steps"]["count"] == 2
    assert "not stationary" not in kinds


def test_neither_settles_a_target(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, repeats=3)
    write_json(sweep / "sweep.json", {"targets": [{"metric": "throughput", "value": 1.0}]})
    assert [each.verdict for each in targets_of(sweep)] == ["met"]
    reshape(sweep / "n4x1-r1", drifting)
    (result,) = targets_of(sweep)
    assert (result.verdict, result.reason) == ("cannot tell", "the runs are not stationary")


def test_runs_without_readable_step_records_have_no_statistics(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1,))
    (sweep / "n1x1-r0" / "attempts" / "000" / "steps-00000.jsonl").unlink()
    statistics = step_statistics(load_runs([sweep]))
    assert sorted(Path(path).name for path in statistics) == ["n1x1-r1", "n1x1-r2"]
    assert curve_of(sweep).points[0].samples_per_s.low is not None
