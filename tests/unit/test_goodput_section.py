"""The sections of goodput and of POP factors."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.read.load import load_runs
from analysis.report.sections import goodput, pop, runs
from analysis.study import Study, make_study
from disttrain.records.json_files import read_jsonl, write_text
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import Step
from tests.support.fake_runs import fake_sweep


def study_of(sweep: Path) -> Study:
    table = load_runs([sweep])
    return make_study(table)


def with_all_ranks(sweep: Path, slow: float) -> None:
    """Write the steps of all ranks; the last rank of each run computes longer and waits less."""
    for run in map(RunDir, sweep.iterdir()):
        attempt, world = run.attempt(0), int(run.path.name[1])
        steps = [Step.model_validate(record) for record in read_jsonl(attempt.steps(0))]
        for rank in range(1, world):
            extra = slow if rank == world - 1 else 0.0
            own = [
                step.model_copy(
                    update={
                        "compute_s": step.compute_s + extra * step.step_s,
                        "comm_wait_s": (step.comm_wait_s or 0.0) - extra * step.step_s,
                    }
                )
                for step in steps
            ]
            write_text(attempt.steps(rank), "".join(step.model_dump_json() + "\n" for step in own))


def test_goodput_divides_all_time_of_the_runs(tmp_path: Path) -> None:
    study = study_of(fake_sweep(tmp_path))
    section = goodput.build(study)
    assert section is not None
    (table,) = section.tables
    assert [row[0] for row in table.rows] == [1, 2, 4]
    at = [column.name for column in table.columns].index("training_s") - 3
    for _, share, whole_s, *classes in table.rows:
        assert sum(each.value for each in classes) == pytest.approx(whole_s.value)
        assert whole_s.value == pytest.approx(120)  # submitted 03:02:05, ended 03:04:05
        assert share.value == pytest.approx(classes[at].value / whole_s.value)
        assert share.low < share.value < share.high
    assert "9 runs have no recorded times of steps" in section.conclusion
    assert len(study.job_times) == 9
    (of_runs,) = runs.build(study).tables
    at = [column.name for column in of_runs.columns].index("whole_s")
    assert [round(row[at]) for row in of_runs.rows] == [120] * 9


def test_no_goodput_without_a_started_run(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path)
    for run in sweep.iterdir():
        RunDir(run).attempt(0).record.unlink()
    assert goodput.build(study_of(sweep)) is None


def test_a_slow_rank_is_persistent_imbalance(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 4))
    with_all_ranks(sweep, slow=0.05)
    section = pop.build(study_of(sweep))
    assert section is not None
    (table,) = section.tables
    row = dict(zip((column.name for column in table.columns), table.rows[1], strict=True))
    assert row["persistent_balance"].value == pytest.approx(0.94, abs=0.02)
    assert row["transient_balance"].value == pytest.approx(1)
    assert row["computation_scaling"].value < 1
    assert table.rows[0][-1] is None, "the base"


def test_no_pop_factors_without_the_records_of_all_ranks(tmp_path: Path) -> None:
    assert pop.build(study_of(fake_sweep(tmp_path, nodes=(2, 4)))) is None


def test_equal_factors_of_several_curves_have_a_smallest(tmp_path: Path) -> None:
    axes = [{"optim.lr": 0.1}, {"optim.lr": 0.2}]
    study = study_of(fake_sweep(tmp_path, nodes=(2,), axes=axes, repeats=1, all_ranks=True))
    assert pop.build(study) is not None
