"""Jobs that `cancel` ends, and jobs that go on."""

from __future__ import annotations

import errno
import getpass
from pathlib import Path

import pytest

from disttrain.records.json_files import write_json
from jobs.core import journal
from jobs.core.processes import host
from jobs.schedulers.interface import Job
from jobs.status.run_state import read_runs, read_state
from jobs.submission import cancel
from jobs.submission.cancel import await_end, cancel_runs
from tests.support.jobs import FakeScheduler, FakeSlurm
from tests.support.states import make_run, on_cluster, on_slurm


def test_cancel_leaves_jobs_of_another_cluster_and_reports_refusals(tmp_path: Path) -> None:
    for name in ("here", "there", "refused"):
        run = on_cluster(tmp_path, f"s/{name}", "there" if name == "there" else "here", handle=f"tag {name}")
        journal.write_receipt(run, 0, name)
    cluster = FakeSlurm("pending")
    cluster.is_cluster = "here"
    cluster.refused = {"refused": "scancel did not end job refused: no"}
    cancelled, failures = cancel_runs(read_runs(tmp_path), cluster)
    assert sorted(path.parts[-3] for path in tmp_path.rglob("*.cancel.json")) == ["here"]
    assert cluster.cancelled == ["here"]
    assert [state.name for state in cancelled] == ["here"]
    assert {path.name: reason for path, reason in failures.items()} == {
        "there": "its job is on cluster 'there': cancel it there",
        "refused": "scancel did not end job refused: no",
    }
    assert {s.name: s.state for s in read_runs(tmp_path)} == {
        "here": "failed", "there": "queued", "refused": "queued",
    }  # fmt: skip


def test_an_operator_cancels_jobs_in_a_folder_without_write_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the scheduler decides; the journal of the owner stays as it is."""
    runs = [on_slurm(tmp_path, f"s/{job_id}", job_id) for job_id in ("7", "8")]
    journal.write_cancel(runs[1], 0, "the owner", "login")
    before = sorted(tmp_path.rglob("*"))

    def deny(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for function in ("write_json", "create_exclusive"):
        monkeypatch.setattr(journal, function, deny)
    cluster = FakeSlurm("pending")
    cluster.refused = {"8": "denied"}
    cancelled, failures = cancel_runs(read_runs(tmp_path), cluster)
    assert ([state.name for state in cancelled], list(failures.values())) == (["7"], ["denied"])
    assert sorted(tmp_path.rglob("*")) == before


def test_the_user_who_cancelled_a_run_is_on_record(tmp_path: Path) -> None:
    waiting, running = make_run(tmp_path, "s/waiting", "queued"), make_run(tmp_path, "s/running", "running")
    cancel_runs(read_runs(tmp_path), FakeScheduler())
    assert read_state(running).state == "running", "until it has ended"
    by = f"by `submit.py cancel` of {getpass.getuser()} on {host()}"
    assert (read_state(waiting).cause, read_state(waiting).message) == (
        "cancelled",
        f"before it started, {by}",
    )
    outcome = {"attempt": 0, "message": "the scheduler ended the job", "retryable": True}
    for cause in ("cancelled", "killed", "lost"):
        write_json(running.failed, outcome | {"cause": cause})
        assert (read_state(running).cause, read_state(running).message) == ("cancelled", by)
    write_json(running.failed, outcome | {"cause": "out_of_memory"})
    assert read_state(running).cause == "out_of_memory"
    other = make_run(tmp_path, "s/other", "cancelled")
    assert read_state(other).message == "cancelled while it ran", "by somebody else"


def test_the_end_is_awaited_and_the_scheduler_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel, "_QUERY_INTERVAL_S", 0.0)
    run = on_slurm(tmp_path, claimed=True)
    cluster, notified = FakeSlurm("running"), []
    hit, _ = cancel_runs([read_state(run)], cluster)
    (state,) = await_end(hit, cluster, within_s=1.2, notify=notified.append)
    assert (state.state, notified) == ("running", [1])
    cluster.job = Job("ended", "its job was cancelled", "cancelled")  # killed before it recorded its end
    (state,) = await_end(hit, cluster, within_s=60.0)
    assert state.displayed_state == "cancelled"
