"""A job whose run directory was replaced by that of another run of the same name writes nothing there."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from disttrain.errors import Superseded
from disttrain.records.run_directory import ID_VARIABLE, RunDir
from disttrain.telemetry.step_log import StepLog
from disttrain.telemetry.steps import StepResult
from jobs.core import journal
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE
from tests.support.jobs import WITHIN_S, FakeScheduler, started_pids, starts, submit, sweep_plan, wait_until
from tests.support.scheduler import Scheduler
from tests.support.stopping import alone, config, train_until

pytestmark = pytest.mark.multiprocess


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_agent_of_a_running_job(tmp_path: Path) -> None:
    cluster, plan = FakeScheduler(), sweep_plan("a", mode="hang")
    submit(plan, cluster, tmp_path)
    job = Scheduler(tmp_path / "scheduler", RunDir(tmp_path / "demo" / "a"))
    job.says()
    old = job.start()
    wait_until(lambda: starts(job.run))
    job.run.path.rename(tmp_path / "trash")
    submit(plan, cluster, tmp_path)
    new = job.start()
    wait_until(lambda: len(started_pids(job.run)) == 2)
    wait_until(lambda: job.run.attempt(0).node_record(0).exists())
    before = files(job.run.path)
    old.send_signal(signal.SIGUSR1)  # the agent looks for a newer attempt at once
    text, _ = old.communicate(timeout=WITHIN_S)
    assert old.returncode == EXIT_DO_NOT_REQUEUE, text
    assert files(job.run.path) == before
    assert new.poll() is None
    job.says(running=False)
    new.send_signal(signal.SIGTERM)
    new.communicate(timeout=WITHIN_S)
    assert job.outcome()["cause"] == "cancelled"


@pytest.mark.parametrize("node", [0, 1])
def test_a_job_that_was_still_queued(tmp_path: Path, node: int) -> None:
    cluster, plan = FakeScheduler(), sweep_plan("a", nodes=2)
    submit(plan, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")
    old_job = (journal.entry(run, 0).read("receipt") or {})["job_id"]
    run.path.rename(tmp_path / "trash")
    submit(plan, cluster, tmp_path)
    new = Scheduler(tmp_path / "new", run, 2)
    agents = [new.start(node=node) for node in (0, 1)]
    assert [agent.wait(WITHIN_S) for agent in agents] == [0, 0]
    before = files(run.path)
    old = Scheduler(tmp_path / "old", run, 2)
    (old.folder / "job_id").write_text(old_job)
    late = old.start(node=node)
    text, _ = late.communicate(timeout=WITHIN_S)
    assert (late.returncode, files(run.path)) == (EXIT_DO_NOT_REQUEUE if node else 0, before), text


def test_a_job_that_starts_before_the_one_of_its_successor(tmp_path: Path) -> None:
    cluster, plan = FakeScheduler(), sweep_plan("a")
    submit(plan, cluster, tmp_path)
    job = Scheduler(tmp_path / "scheduler", RunDir(tmp_path / "demo" / "a"))
    (job.folder / "job_id").write_text("of a run that was deleted")
    before = files(job.run.path)
    late = job.start()
    text, _ = late.communicate(timeout=WITHIN_S)
    assert (late.returncode, files(job.run.path)) == (EXIT_DO_NOT_REQUEUE, before)
    assert "job of a run that was deleted is not the job of this run directory, which belongs to job" in text


def test_a_job_whose_run_was_deleted_creates_nothing(tmp_path: Path) -> None:
    job = Scheduler(tmp_path / "scheduler", RunDir(tmp_path / "demo" / "a"))
    late = job.start()
    text, _ = late.communicate(timeout=WITHIN_S)
    assert "cannot start: " in text
    assert not (tmp_path / "demo").exists()


def test_the_rank_of_a_running_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run").identified(create=True)
    monkeypatch.setenv(ID_VARIABLE, str(run.directory_id))
    made = config(train={"steps": 1_000_000}, checkpoint={"every_steps": 1_000})
    original = StepLog.record
    before: dict[str, bytes] = {}

    def record(self: StepLog, result: StepResult, **more: Any) -> None:
        original(self, result, **more)
        if result.step == 10:
            run.path.rename(tmp_path / "trash")
            RunDir(run.path).identified(create=True).attempt(0).path.mkdir()
            before.update(files(run.path))

    with patch.object(StepLog, "record", record), pytest.raises(Superseded, match="moved away or deleted"):
        train_until(alone(), made, run.path, 0, None)
    assert files(run.path) == before
