"""The step of a job that follows a failure of its agents."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from disttrain.records.json_files import write_json
from jobs.core import journal
from jobs.status.run_state import read_state
from tests.support.jobs import wait_until
from tests.support.scheduled_jobs import ended, hook_calls, launched, planned, written

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize("saved", [True, False])
def test_the_job_of_a_killed_agent_is_requeued_by_the_next_step(tmp_path: Path, saved: bool) -> None:
    job = planned(tmp_path, "leave")
    job.says()
    process = job.start()
    launched(job)
    if saved:
        write_json(job.run.attempt(0).stop, {"cause": "preempted", "time": time.time(), "node": 0})
        wait_until(job.run.metrics.exists)
    process.kill()
    process.communicate()
    assert ended(job.start(after_failure=True)) == 0
    outcome = job.outcome()
    assert (outcome["cause"], outcome["next"]) == ("preempted" if saved else "lost", "requeue")
    assert (job.requeues, hook_calls(job)) == (["0"], [])
    assert read_state(job.run).state == "queued"


@pytest.mark.parametrize("state", ["closed", "ended by the scheduler", "superseded", "not started"])
def test_the_step_after_a_failure_leaves_other_ends_alone(tmp_path: Path, state: str) -> None:
    job = planned(tmp_path, "fail" if state == "closed" else "hang")
    job.says(running=state != "ended by the scheduler")
    if state != "not started":
        process = job.start()
        launched(job)
        if state != "closed":
            process.kill()
        process.communicate()
    if state == "superseded":
        assert journal.claim(job.run, 0, process={}, job_id=job.job_id, code_hash="", restart=1) == 1
    before = written(job.run)
    assert ended(job.start(after_failure=True)) == 1
    assert (written(job.run), job.requeues) == (before, [])


def test_the_step_after_a_failure_repeats_a_requeue_that_was_decided(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    job.says()
    (job.folder / "silent").touch()
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR1)
    wait_until(job.run.failed.exists)
    process.kill()  # while the controller does not answer
    process.communicate()
    (job.folder / "silent").unlink()
    assert ended(job.start(after_failure=True)) == 0
    assert (job.requeues, job.outcome()["cause"]) == (["0"], "preempted")
