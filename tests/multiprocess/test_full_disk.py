"""Training on a disk that is full for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import submit as submit_py
from disttrain.checkpoint import storage
from disttrain.errors import message_of
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.run_directory import RunDir
from disttrain.telemetry import live_progress
from disttrain.telemetry.step_log import StepLog
from disttrain.telemetry.steps import StepResult
from jobs.status.run_state import read_state
from tests.support.jobs import WITHIN_S, FakeScheduler, starts, submit, sweep_plan, wait_until
from tests.support.scheduler import Scheduler
from tests.support.small_disk import fill, mounted
from tests.support.states import make_run
from tests.support.stopping import alone, config, train_until
from tests.support.verbs import TINY

pytestmark = pytest.mark.multiprocess
STEPS = 120
FULL_FROM, FULL_TO = 10, 90


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for a copy of the code."""
    with mounted(tmp_path / "disk", "16m") as path:
        yield path


@pytest.mark.parametrize("sinks", [(), ("tensorboard",)], ids=["files", "tensorboard"])
def test_no_step_and_no_record_is_lost(
    disk: Path, monkeypatch: pytest.MonkeyPatch, sinks: tuple[str, ...]
) -> None:
    original = StepLog.record

    def note(self: StepLog, result: StepResult, **more: Any) -> None:
        original(self, result, **more)
        if result.step == FULL_FROM:
            fill(disk / "filler")
        if result.step == FULL_TO:
            assert len(list(read_jsonl(RunDir(disk).attempt(0).steps(0)))) < FULL_TO - 1, "it was full"
            (disk / "filler").unlink()

    monkeypatch.setattr(live_progress, "PROGRESS_EVERY_S", 0.0)
    monkeypatch.setattr(live_progress, "SUMMARY_SHARE", 1e9)
    made = config(train={"steps": STEPS}, telemetry={"flush_every_s": 1e-9, "sinks": sinks})
    with patch.object(StepLog, "record", note):
        seen = train_until(alone(), made, disk, 0, None)
    run = RunDir(disk)
    assert [line["step"] for line in read_jsonl(run.attempt(0).steps(0))] == list(range(1, STEPS + 1))
    assert seen.metrics.status == read_json(run.metrics)["status"] == "completed"
    assert read_json(run.progress)["step"] == STEPS


def test_a_checkpoint_a_command_and_a_state_name_the_full_disk(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    lost = make_run(disk, "other/n1", "lost")
    fill(disk / "filler")
    with pytest.raises(Exception, match=r"unexpected pos|No space") as raised:  # the first one by PyTorch
        storage.write({"weight": torch.zeros(10_000)}, disk / "other", 0)
    assert message_of(raised.value).startswith("the disk is full")
    assert submit_py.main(["run", "tiny.yaml", "--runs", str(disk), "--cluster", "local"]) == 1
    assert capsys.readouterr().err == f"error: the disk is full: {disk}/tiny/sweep.json\n"
    assert [path.name for path in (disk / "tiny").iterdir()] == [".lock"]
    message = read_state(lost).message or ""
    assert message.endswith(f" ended without recording why; the disk is full: {lost.path}")
    (disk / "filler").unlink()
    assert "full" not in (read_state(lost).message or "")


def test_a_rank_fails_on_a_full_disk_and_the_job_is_requeued(disk: Path, tmp_path: Path) -> None:
    """Node 1 cannot write a byte, and node 0 cannot close the attempt."""
    full = tmp_path / "full"
    environment = {"STANDIN": "fail-when-full", "FULL": str(full)}
    plan = sweep_plan("a", nodes=2, env=environment, preflight="off")  # it wants more free space
    submit(plan, FakeScheduler(), disk)
    job = Scheduler(tmp_path / "scheduler", RunDir(disk / "demo" / "a"), 2)
    nodes = [job.start(node=node) for node in (0, 1)]
    wait_until(lambda: len(starts(job.run)) == 2)
    wait_until(lambda: all(job.run.attempt(0).node_record(node).exists() for node in (0, 1)))
    fill(disk / "filler")
    full.touch()
    assert [process.communicate(timeout=WITHIN_S)[0] is not None for process in nodes]
    assert job.requeues == ["0"], job.run.attempt(0).node_log(0).read_text()
    assert [process.returncode for process in nodes] == [0, 0]
    (disk / "filler").unlink()
    record = read_json(job.run.run_json)
    record["config"]["job"]["env"]["STANDIN"] = "complete"
    write_json(job.run.run_json, record)
    again = [job.start(restart=1, node=node) for node in (0, 1)]
    assert [process.wait(WITHIN_S) for process in again] == [0, 0]
    state = read_state(job.run)
    assert (state.state, state.attempts) == ("done", 2)
