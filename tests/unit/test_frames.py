"""Run directories as frames: typed columns, attempts, hosts, damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.read.frames import Frames, load_frames
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from tests.support.fake_runs import NODE, fake_run, fake_sweep
from tests.support.lineage import read_steps


def write_steps(run: RunDir, attempt: int, rank: int, steps: range, step_s: float = 1.0) -> None:
    lines = [{"step": step, "start_s": step - steps[0], "step_s": step_s, "samples": 4} for step in steps]
    write_text(run.attempt(attempt).steps(rank), "".join(f"{json.dumps(line)}\n" for line in lines))


def frames_of(run: RunDir) -> Frames:
    return load_frames([run.path.parent])


def test_a_row_is_a_step_of_a_rank_with_typed_columns(tmp_path: Path) -> None:
    frames = load_frames([fake_sweep(tmp_path, repeats=2)])
    steps = frames.steps
    names = ["run", "rank", "step_s", "measured"]
    assert [str(steps[name].dtype) for name in names] == ["category", "int32", "float64", "bool"]
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
    line = {"first": 11, "last": 110, "steps": 100, "start_s": None, "step_s": 10.0, "bins": [[5, 100]]}
    write_text(run.attempt(0).steps(0), json.dumps(line | {"samples": 800}) + "\n")
    (row,) = frames_of(run).steps.itertuples()
    assert (row.step, row.counts, row.samples, row.step_s, row.measured) == (11, 100, 800, 10.0, True)
    assert np.isnan(row.start_s)


def test_ranks_have_the_host_of_their_node(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=2, gpus_per_node=2, hosts=["c07", "c08"])
    for rank in range(4):
        write_steps(run, 0, rank, range(1, 3))
    frame = frames_of(run).steps
    assert dict(zip(frame["rank"], frame["host"], strict=True)) == {0: "c07", 1: "c07", 2: "c08", 3: "c08"}
    run.attempt(0).record.unlink()
    write_json(run.attempt(0).node_record(1), NODE | {"host": "c09"})
    assert frames_of(run).steps["host"].tolist() == [""] * 4 + ["c09"] * 4


def test_samples_of_gpus_and_processes_are_rows(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", hosts=["c07"])
    write_steps(run, 0, 0, range(1, 111), step_s=0.1)
    gpu = {"rank": 0, "at_s": 1.05, "time": 1.7e9, "utilization": 0.9, "sm_clock_mhz": 1410, "energy_j": None}
    lines = [gpu, gpu | {"at_s": 999.0}]
    write_text(run.attempt(0).gpu_samples(0), "".join(f"{json.dumps(line)}\n" for line in lines))
    frame = frames_of(run).hardware
    sample, outside = frame[frame["kind"] == "gpu"].itertuples()
    assert (sample.host, sample.step, sample.time, sample.sm_clock_mhz) == ("c07", 2, 1.7e9, 1410)
    assert np.isnan(sample.energy_j)
    assert np.isnan(outside.step)
    process = frame[frame["kind"] == "process"].iloc[1]
    assert (process["host"], process["rss_bytes"]) == ("c07", 300 * 2**20)
    assert process["cpu_percent"] == pytest.approx(90 + 5 * np.sin(1))


def test_problems_are_listed_with_file_and_line(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    lines = path.read_text().splitlines()
    lines[3:3] = ["not json", '{"step": "three"}', '{"start_s": 1.0}', "[]"]
    write_text(path, "\n".join(lines) + '\n{"step": 11')
    frames = frames_of(run)
    assert len(frames.steps) == 110
    places = [problem.removeprefix(str(path)).split(" ")[0] for problem in frames.problems]
    assert places[:3] == [":4", ":5", ":7"]
    assert frames.problems[3] == f"{path.parents[1]}: 1 records without `step` or `step_s`"


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([0, 1, 2, 3], ""),
        ([0, 2], "ranks 1, 3 of 4 recorded 0 of 100 measured steps"),
        ([], "ranks 0, 1, 2, 3 of 4 recorded 0 of 100 measured steps"),
        (None, "rank 1 of 4 recorded 40 of 100 measured steps"),
    ],
)
def test_ranks_without_records_are_listed(tmp_path: Path, kept: list[int] | None, expected: str) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=4, all_ranks=True)
    for rank in range(4):
        path = run.attempt(0).steps(rank)
        if kept is None and rank == 1:
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:50]))
        elif kept is not None and rank not in kept:
            path.unlink()
    frames = load_frames([tmp_path / "s"])
    listed = (f"{run.path}/attempts: {expected}",) if expected else ()
    assert frames.incomplete == listed
    assert frames.problems == ()


def test_a_damaged_run_is_listed_and_hides_no_other(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "good")
    bad = fake_run(tmp_path / "s" / "bad")
    bad.run_json.unlink()
    bad.metrics.unlink()
    bad.done.unlink()
    bad.attempt(0).steps(0).unlink()
    bad.attempt(0).steps(0).mkdir()
    frames = load_frames([tmp_path / "s"])
    assert dict(zip(frames.runs["run"], frames.runs["note"], strict=True)) == {
        "bad": "no metrics yet; run.json is missing",
        "good": "",
    }
    assert len(frames.steps) == 110
    (problem,) = frames.problems
    assert problem == f"{bad.attempt(0).steps(0)} is not a regular file"
