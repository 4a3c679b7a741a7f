"""Run directories as frames: typed columns, attempts, hosts, damaged files, the cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.runs.frames import STEP_COLUMNS, Frames, load_frames
from analysis.runs.step_records import read_steps
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run, fake_sweep


def write_steps(run: RunDir, attempt: int, rank: int, steps: range, step_s: float = 1.0) -> None:
    lines = [{"step": step, "start_s": step - steps[0], "step_s": step_s, "samples": 4} for step in steps]
    write_text(run.attempt(attempt).steps(rank), "".join(f"{json.dumps(line)}\n" for line in lines))


def frames_of(run: RunDir) -> Frames:
    return load_frames([run.path.parent])


def test_a_row_is_a_step_of_a_rank_with_typed_columns(tmp_path: Path) -> None:
    frames = load_frames([fake_sweep(tmp_path, repeats=2)])
    steps = frames.steps
    assert {name: str(steps[name].dtype) for name in steps} == STEP_COLUMNS
    assert frames.problems == ()
    assert len(steps) == 3 * 2 * 110
    for row in frames.runs.itertuples():
        own = steps[(steps["run"] == row.path) & steps["measured"]]
        assert len(own) == row.measured_steps
        assert own["step_s"].sum() == pytest.approx(row.measured_s)
        assert np.nansum(own[list(PHASES)].to_numpy()) == pytest.approx(row.measured_s)
    alone = steps[steps["run"] == frames.runs["path"][0]]
    assert alone["comm_wait_s"].isna().all()  # one rank: nothing to measure, which is not zero


def test_steps_repeated_after_a_resume_are_in_the_frame_but_not_kept(tmp_path: Path) -> None:
    """Attempt 0 was killed at step 7, 1 went on from 4 and was killed at 5, 2 did the rest from 4 again."""
    run = fake_run(tmp_path / "s" / "run", nodes=2)
    for rank in (0, 1):
        for attempt, steps in enumerate([range(1, 8), range(5, 6), range(5, 7)]):
            write_steps(run, attempt, rank, steps)
    write_json(run.metrics, read_json(run.metrics) | {"attempt": 2, "left_out": [(1, 2), (5, 5)]})
    frame = frames_of(run).steps
    assert len(frame) == 2 * (7 + 1 + 2)
    for rank in (0, 1):
        kept = frame[frame["kept"] & (frame["rank"] == rank)]
        assert dict(zip(kept["step"], kept["attempt"], strict=True)) == {
            step: attempt for step, (attempt, _) in read_steps(run, rank).items()
        }
        assert kept.loc[kept["measured"], "step"].tolist() == [3, 4, 6]
    assert not frame.loc[~frame["kept"], "measured"].any()


def test_an_aggregate_is_one_row_with_sums(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    line = {"first": 11, "last": 110, "steps": 100, "start_s": None, "step_s": 50.0, "bins": [[5, 100]]}
    write_text(run.attempt(0).steps(0), json.dumps(line | {"samples": 800}) + "\n")
    (row,) = frames_of(run).steps.itertuples()
    assert (row.step, row.steps, row.samples, row.step_s, row.measured) == (11, 100, 800, 50.0, True)
    assert np.isnan(row.start_s)


def test_ranks_have_the_host_of_their_node(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=2, gpus_per_node=2, hosts=["c07", "c08"])
    for rank in range(4):
        write_steps(run, 0, rank, range(1, 3))
    frame = frames_of(run).steps
    assert dict(zip(frame["rank"], frame["host"], strict=True)) == {0: "c07", 1: "c07", 2: "c08", 3: "c08"}
    run.attempt(0).record.unlink()
    write_json(run.attempt(0).node_record(1), {"host": "c09"})
    assert frames_of(run).steps["host"].tolist() == [""] * 4 + ["c09"] * 4
