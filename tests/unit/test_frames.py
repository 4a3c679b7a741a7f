"""Run directories as frames: typed columns, attempts, hosts, damaged files, the cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.read.collectives import COLLECTIVE_COLUMNS
from analysis.read.frames import STEP_COLUMNS, Frames, load_frames
from analysis.read.samples import HARDWARE_COLUMNS
from analysis.read.step_records import read_steps
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


def collective(kind: str, bucket: int, duration_s: float, **more: object) -> dict[str, object]:
    return {
        "kind": kind, "bucket": bucket, "bytes": 4096, "start_s": 0.1, "duration_s": duration_s,
        "hidden_s": 0.25 * duration_s, "exposed_s": 0.75 * duration_s, **more,
    }  # fmt: skip


def test_a_collective_of_a_profiled_step_is_a_row(tmp_path: Path) -> None:
    """Attempt 1 repeats the steps from 5, so the profiled step 7 of attempt 0 is not part of the model."""
    run = fake_run(tmp_path / "s" / "run", nodes=2, hosts=["c07", "c08"])
    sharded = collective("all_gather", 1, 0.4, ranks=1, dimension="shard") | {"bytes": None}
    both = [collective("all_reduce", 0, 0.2), sharded]
    for rank in (0, 1):
        for attempt, steps in enumerate([range(1, 8), range(5, 11)]):
            write_steps(run, attempt, rank, steps)
            lines = [{"step": step, "collectives": both} for step in (3, 7, 9) if step in steps]
            write_text(run.attempt(attempt).comm(rank), "".join(f"{json.dumps(line)}\n" for line in lines))
    write_json(run.attempt(1).record, read_json(run.attempt(0).record))
    write_json(run.metrics, read_json(run.metrics) | {"attempt": 1})
    frame = frames_of(run).collectives
    assert {name: str(frame[name].dtype) for name in frame} == COLLECTIVE_COLUMNS
    assert len(frame) == 2 * 2 * (2 + 2)
    assert sorted(set(frame.loc[frame["kept"], "step"])) == [3, 7, 9]
    assert frame.loc[~frame["kept"], ["attempt", "step"]].drop_duplicates().to_numpy().tolist() == [[0, 7]]
    first, second = frame.iloc[0], frame.iloc[1]
    assert (first["kind"], first["bytes"], first["ranks"], first["dimension"]) == (
        "all_reduce",
        4096,
        2,
        "world",
    )
    assert (second["ranks"], second["dimension"], second["exposed_s"]) == (1, "shard", pytest.approx(0.3))
    assert np.isnan(second["bytes"])
    assert dict(zip(frame["rank"], frame["host"], strict=True)) == {0: "c07", 1: "c08"}


def test_samples_of_gpus_and_processes_are_rows_in_base_units(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "run", hosts=["c07"])
    write_steps(run, 0, 0, range(1, 4))
    gpu = {
        "rank": 0,
        "at_s": 1.5,
        "time": 1.7e9,
        "utilization": 0.9,
        "memory_used_bytes": 2**30,
        "sm_clock_mhz": 1410,
    }
    gpu |= {"power_w": 300.0, "energy_j": None, "throttle": ["power_cap", "sw_thermal"]}
    write_text(run.attempt(0).gpu_samples(0), json.dumps(gpu) + "\n" + json.dumps(gpu | {"at_s": 9.0}) + "\n")
    device = {"ranks": [0], "uuid": "GPU-1", "memory_total_bytes": 2**34, "sm_clock_max_mhz": 1980}
    write_json(run.attempt(0).gpu_devices(0), {"gpus": [device]})
    frame = frames_of(run).hardware
    assert {name: str(frame[name].dtype) for name in frame} == HARDWARE_COLUMNS
    sample, outside = frame[frame["kind"] == "gpu"].itertuples()
    assert (sample.host, sample.device, sample.step, sample.clock_hz) == ("c07", "GPU-1", 2, 1410e6)
    assert (sample.clock_max_hz, sample.memory_total_bytes, sample.throttle) == (
        1980e6,
        2**34,
        "power_cap,sw_thermal",
    )
    assert np.isnan(sample.energy_j)
    assert np.isnan(outside.step)
    process = frame[frame["kind"] == "process"].iloc[1]
    assert (process["host"], process["memory_bytes"]) == ("c07", 300 * 2**20)
    assert process["utilization"] == pytest.approx(0.9 + 0.05 * np.sin(1))
