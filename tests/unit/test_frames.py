"""Run directories as frames: typed columns, attempts, hosts, samples, damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.read.frames import Frames, load_frames, swept_keys
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import NODE, edit, fake_run, fake_sweep, write_lines


def write_steps(run: RunDir, attempt: int, rank: int, steps: range, step_s: float = 1.0) -> None:
    write_lines(
        run.attempt(attempt).steps(rank),
        [{"step": step, "start_s": step - steps[0], "step_s": step_s, "samples": 4} for step in steps],
    )


def frames_of(run: RunDir) -> Frames:
    return load_frames([run.path.parent])


def test_a_row_is_a_run_or_a_step_of_a_rank_with_typed_columns(tmp_path: Path) -> None:
    axes = [{"parallel.strategy": kind} for kind in ("ddp", "auto")]
    frames = load_frames([fake_sweep(tmp_path, nodes=(1, 2), repeats=2, axes=axes)])
    runs, steps = frames.runs, frames.steps
    assert (len(runs), len(steps)) == (8, 8 * 110)
    assert {name: str(runs[name].dtype) for name in ("run", "nodes", "step_s", "included")} == {
        "run": "string", "nodes": "Int64", "step_s": "Float64", "included": "boolean",
    }  # fmt: skip
    assert [str(steps[name].dtype) for name in ("run", "rank", "step_s", "measured")] == [
        "category", "int32", "float64", "bool",
    ]  # fmt: skip
    assert swept_keys(runs) == ["parallel.strategy", "resources.nodes"]
    row = runs.iloc[0]
    assert row["samples_per_s"] == pytest.approx(
        row["measured_steps"] * row["global_batch_size"] / row["measured_s"]
    )
    assert row["step_s"] == pytest.approx(row["measured_s"] / row["measured_steps"])
    assert row["left_out"] == "[[1, 10]]"
    own = steps[(steps["run"] == row["path"]) & steps["measured"]]
    assert own["step_s"].sum() == pytest.approx(row["measured_s"])
    assert pd.isna(row["comm_transfer_s"]), "one rank: nothing to measure, which is not zero"


def test_an_axis_with_the_name_of_a_column_has_a_column_of_its_own(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "n1")
    write_json(
        run.run_json, read_json(run.run_json) | {"axes": {"samples_per_s": 3, "state": "a", "lr": 0.5}}
    )
    table = load_frames([tmp_path / "s"]).runs
    assert table.columns.is_unique
    names = ("state", "axes.state", "axes.samples_per_s", "lr")
    assert [table[name].item() for name in names] == ["done", "a", 3, 0.5]


@pytest.mark.parametrize(
    ("attempts", "last", "left_out", "kept", "measured"),
    [
        # 0 was killed at step 7, 1 went on from 4 and was killed at 5, 2 did the rest from 4 again
        ([(1, 7), (5, 5), (5, 6)], 2, [(1, 2), (5, 5)], {1: 0, 2: 0, 3: 0, 4: 0, 5: 2, 6: 2}, [3, 4, 6]),
        ([(1, 7), (5, 5), (5, 6)], 0, [], dict.fromkeys(range(1, 8), 0), [*range(1, 8)]),
        ([(1, 9), (1, 3)], 1, [(1, 1)], {1: 1, 2: 1, 3: 1}, [2, 3]),  # started anew
    ],
)
def test_steps_repeated_after_a_resume_are_in_the_frame_but_not_kept(
    tmp_path: Path, attempts, last, left_out, kept, measured
) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=2)
    for rank in (0, 1):
        for attempt, (first, final) in enumerate(attempts):
            write_steps(run, attempt, rank, range(first, final + 1))
    run.attempt(3).path.mkdir()  # ended before its first step
    edit(run.metrics, attempt=last, left_out=left_out)
    frame = frames_of(run).steps
    assert len(frame) == 2 * sum(final - first + 1 for first, final in attempts)
    for rank in (0, 1):
        own = frame[frame["kept"] & (frame["rank"] == rank)]
        assert dict(zip(own["step"], own["attempt"], strict=True)) == kept
        assert own.loc[own["measured"], "step"].tolist() == measured
    assert not frame.loc[~frame["kept"], "measured"].any()


def test_an_aggregate_is_one_row_with_sums_and_left_out_as_a_whole(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    records = list(read_jsonl(run.attempt(0).steps(0)))
    whole = {"first": 11, "last": 60, "steps": 50, "step_s": sum(each["step_s"] for each in records[10:60])}
    whole |= {"start_s": None, "samples": 400, "bins": [[-232, 50]]}
    write_lines(run.attempt(0).steps(0), [*records[:10], whole, *records[60:]])
    row = frames_of(run).steps.iloc[10]
    assert (row["step"], row["counts"], row["samples"], row["measured"]) == (11, 50, 400, True)
    assert np.isnan(row["start_s"])
    assert load_frames([tmp_path / "s"], warmup=20).runs["measured_steps"].tolist() == [50]


def test_ranks_have_the_host_of_their_node_by_the_record_of_the_attempt_or_their_own(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=2, gpus_per_node=2, hosts=["c07", "c08"])
    for rank in range(4):
        write_steps(run, 0, rank, range(1, 2))
    assert frames_of(run).steps["host"].tolist() == ["c07", "c07", "c08", "c08"]
    run.attempt(0).record.unlink()
    write_json(run.attempt(0).node_record(1), NODE | {"host": "c09"})
    assert frames_of(run).steps["host"].tolist() == ["", "", "c09", "c09"]
    run.metrics.unlink()
    assert frames_of(run).steps["host"].tolist() == ["", "", "c09", "c09"], "the shape is that of run.json"


def test_samples_of_gpus_and_processes_are_rows(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", hosts=["c07"])
    write_steps(run, 0, 0, range(1, 111), step_s=0.1)
    gpu = {"rank": 0, "at_s": 1.05, "time": 1.7e9, "utilization": 0.9, "sm_clock_mhz": 1410, "energy_j": None}
    write_lines(run.attempt(0).gpu_samples(0), [gpu, gpu | {"at_s": 999.0}])
    frame = frames_of(run).hardware
    sample, outside = frame[frame["kind"] == "gpu"].itertuples()
    assert (sample.host, sample.step, sample.time, sample.sm_clock_mhz) == ("c07", 2, 1.7e9, 1410)
    assert np.isnan([sample.energy_j, outside.step]).all()
    process = frame[frame["kind"] == "process"].iloc[1]
    assert (process["host"], process["rss_bytes"]) == ("c07", 300 * 2**20)


def test_problems_are_listed_with_file_and_line_and_hide_no_other_record(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    lines = path.read_text().splitlines()
    lines[3:3] = ["not json", '{"step": "three"}', '{"start_s": 1.0}', "[]"]
    path.write_text("\n".join(lines) + '\n{"step": 11')
    lost = fake_run(tmp_path / "s" / "lost").attempt(0).steps(0)
    lost.unlink()
    lost.mkdir()
    frames = frames_of(run)
    assert len(frames.steps) == 110
    assert frames.problems[0] == f"{lost} is not a regular file"
    assert [each.removeprefix(str(path)).split(" ")[0] for each in frames.problems[1:4]] == [":4", ":5", ":7"]
    assert frames.problems[4] == f"{path.parents[1]}: 1 records without `step` or `step_s`"


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ([110, 110, 110, 110], ""),
        ([110, 0, 110, 0], "ranks 1, 3 of 4 recorded 0 of 100 measured steps"),
        ([0, 0, 0, 0], "ranks 0, 1, 2, 3 of 4 recorded 0 of 100 measured steps"),
        ([110, 50, 110, 110], "rank 1 of 4 recorded 40 of 100 measured steps"),
    ],
)
def test_ranks_without_records_are_listed(tmp_path: Path, recorded: list[int], message: str) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=4, all_ranks=True)
    for rank, count in enumerate(recorded):
        path = run.attempt(0).steps(rank)
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    frames = frames_of(run)
    assert frames.incomplete == ((f"{run.path}/attempts: {message}",) if message else ())
    assert frames.problems == ()
