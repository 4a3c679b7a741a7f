"""Agents without a supervisor, as on Slurm: node 0 claims the attempt and closes it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.status.run_state import read_state
from tests.support.jobs import (
    WITHIN_S,
    FakeScheduler,
    started_pids,
    starts,
    submit,
    sweep_plan,
    wait_until,
)
from tests.support.scheduler import Scheduler

pytestmark = pytest.mark.multiprocess


def planned(root: Path, mode: str = "complete", nodes: int = 2) -> Scheduler:
    submit(sweep_plan("a", nodes=nodes, mode=mode), FakeScheduler(), root)
    return Scheduler(root / "scheduler", RunDir(root / "demo" / "a"), nodes)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=WITHIN_S)
    return process.returncode, text


def test_two_agents_one_attempt(tmp_path: Path) -> None:
    job = planned(tmp_path)
    run, agents = job.run, [job.start(node=node) for node in (1, 0)]
    assert [finish(process)[0] for process in agents] == [0, 0]
    assert sorted(starts(run)) == [(0, 0), (0, 1)]
    state = read_state(run)
    assert (state.state, state.attempts) == ("done", 1)
    assert read_json(run.attempt(0).record)["job_id"] == job.job_id


def test_started_again_by_the_scheduler_it_does_nothing(tmp_path: Path) -> None:
    job = planned(tmp_path, nodes=1)
    assert finish(job.start())[0] == 0
    code, text = finish(job.start())
    assert (code, "nothing to do" in text) == (0, True)
    assert starts(job.run) == [(0, 0)]


@pytest.mark.parametrize(("cause", "expected"), [("cancelled", 93), ("finished", 0)])
def test_revoked_agents_leave_without_a_trace(tmp_path: Path, cause: str, expected: int) -> None:
    """The job of a run that has finished meanwhile has not failed."""
    job = planned(tmp_path)
    journal.revoke(job.run, 0, cause, "by the user")
    for code, text in [finish(job.start(node=node)) for node in (0, 1)]:
        assert (code, "nothing to do" in text) == (expected, True)
    assert job.run.attempts() == []


def test_ended_by_the_scheduler(tmp_path: Path) -> None:
    job = planned(tmp_path, mode="hang", nodes=1)
    run, process = job.run, job.start()
    wait_until(lambda: len(started_pids(run)) == 2)
    job.says(running=False)
    process.send_signal(signal.SIGUSR2)  # schedulers send it before they end a job; torchrun would die of it
    process.send_signal(signal.SIGTERM)
    finish(process)
    state = read_state(run)
    assert (state.state, state.cause) == ("failed", "cancelled")
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started_pids(run)))


def test_a_bad_run_json_is_said(tmp_path: Path) -> None:
    job = planned(tmp_path, nodes=1)
    run = job.run
    run.run_json.write_text("{")
    code, text = finish(job.start())
    assert code != 0
    assert f"{run.run_json} is not valid JSON" in text
    assert "Traceback" not in text
