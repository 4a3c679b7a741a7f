"""Later starts of a job: after a requeue, a cancel or a loss, and of a copy that is older."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from jobs.core import journal
from jobs.status.run_state import read_state
from jobs.submission.cancel import cancel_runs
from tests.support.jobs import FakeScheduler, starts, submit, sweep_plan
from tests.support.scheduled_jobs import change_mode, ended, launched, planned, written

pytestmark = pytest.mark.multiprocess


def test_asked_to_stop_while_it_waits_it_stops(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    job.run.stop.touch()  # asked of an earlier submission
    process = job.start()
    launched(job)
    assert not job.run.stop.exists()
    process.send_signal(signal.SIGUSR1)
    ended(process)
    job.run.stop.touch()
    change_mode(job.run, "complete")
    ended(job.start(restart=1))
    assert job.run.stop.exists(), "for its ranks to see"


def test_cancelled_while_it_waits_it_never_starts(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR1)
    ended(process)
    cluster = FakeScheduler()
    cancel_runs([read_state(job.run)], cluster)
    assert cluster.cancelled
    state = read_state(job.run)
    assert (state.state, state.cause, state.retryable) == ("failed", "cancelled", True)
    assert ended(job.start(restart=1)) == 93
    assert len(starts(job.run)) == 1


def test_an_older_copy_that_wakes_up_writes_nothing(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    old = job.start()
    launched(job)
    old.send_signal(signal.SIGSTOP)  # its node is frozen; the scheduler starts it elsewhere
    change_mode(job.run, "complete")
    assert ended(job.start(restart=1)) == 0
    before = written(job.run)
    assert read_json(job.run.attempt(0).record)["cause"] == "lost"
    old.send_signal(signal.SIGCONT)
    old.send_signal(signal.SIGTERM)
    assert ended(old) == 93
    assert written(job.run) == before
    assert job.requeues == []
    assert read_state(job.run).state == "done"
    assert ended(job.start(restart=0)) == 0, "one that comes to life before it has claimed"
    assert starts(job.run) == [(0, 0), (1, 0)]


def test_one_that_was_taken_for_dead_writes_nothing_either(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    process = job.start()
    launched(job)
    assert journal.revoke(job.run, 0, "lost", "submitted again", starts=1)
    process.send_signal(signal.SIGUSR1)
    assert ended(process) == 93
    assert (job.requeues, job.run.failed.exists()) == ([], False)


def test_a_start_that_lacks_what_the_run_asked_for_trains_on_nothing_else(tmp_path: Path) -> None:
    job = planned(tmp_path, "leave")
    process = job.start()
    launched(job)
    process.send_signal(signal.SIGUSR1)  # it saves
    ended(process)
    (job.folder / "lacks").write_text("0 of 4 GPUs")
    assert ended(job.start(restart=1)) == 0
    assert starts(job.run) == [(0, 0)]
    outcome = job.outcome()
    assert (outcome["cause"], outcome["next"]) == ("preflight_failed", "requeue")
    assert "0 of 4 GPUs" in outcome["message"]


def test_a_restart_of_a_finished_job_fails_on_no_node(tmp_path: Path) -> None:
    job = planned(tmp_path, "complete", nodes=2)
    for restart in (0, 1):
        assert [ended(node) for node in [job.start(restart, node) for node in (0, 1)]] == [0, 0]
    assert len(job.run.attempts()) == 1


def test_lost_three_times_without_progress_is_the_end(tmp_path: Path) -> None:
    job = planned(tmp_path, "hang")
    for restart in range(3):
        process = job.start(restart)
        launched(job, restart + 1)
        process.kill()
        process.communicate()
    assert ended(job.start(restart=3)) == 93
    state = read_state(job.run)
    assert (state.state, state.cause, state.retryable) == ("failed", "lost", True)
    assert "not requeued: job.max_attempts=3 in a row without a newer checkpoint" in str(state.message)
    assert [read_json(attempt.record)["cause"] for attempt in job.run.attempts()] == ["lost"] * 3
    assert ended(job.start(restart=4)) == 93
    assert journal.is_revoked(journal.entry(job.run, 0).claims())
    # Asked for by the user it starts again, in a submission of its own.
    submit(sweep_plan("a", mode="hang", max_attempts=9), FakeScheduler(), tmp_path)
    assert read_state(job.run).state == "queued"
