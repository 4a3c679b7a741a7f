"""Opening and closing an attempt while other processes write to the same run."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import attempt as attempts
from jobs.core import journal, requeue_policy
from jobs.core.attempt import (
    DoNotRestart,
    close_attempt,
    failed_hosts,
    is_current,
    open_attempt,
    record_requeue_failure,
)
from jobs.status.outcome import unrecorded_outcome
from tests.support.jobs import FakeScheduler, submit, sweep_plan


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A submitted run that no job has taken up."""
    submit(sweep_plan("a"), FakeScheduler(), tmp_path)
    submitted = RunDir(tmp_path / "demo" / "a")
    journal.write_receipt(submitted, 0, "7")
    return submitted


def begin(
    run: RunDir, restart: int = 0, nodes: Sequence[str] = ("n1", "n2"), submission: int = 0, job_id: str = "7"
) -> Attempt:
    attempt = open_attempt(run, submission, cluster="slurm", job_id=job_id, nodes=nodes, restart=restart)
    assert attempt is not None
    return attempt


def lay_over(attempt: Attempt, **fields: Any) -> None:
    write_json(attempt.record, read_json(attempt.record) | fields)


def test_a_stop_request_counts_from_the_claim_on(run, monkeypatch):
    claim = journal.claim

    def asked_at_once(*args: Any, **names: Any) -> int | None:
        assert not run.stop.exists(), "asked of an earlier submission"
        number = claim(*args, **names)
        run.stop.touch()
        return number

    monkeypatch.setattr(journal, "claim", asked_at_once)
    run.stop.touch()
    begin(run)
    assert run.stop.exists()
    monkeypatch.undo()
    begin(run, restart=1)
    assert run.stop.exists(), "a request to this submission holds after a requeue"


def test_the_record_is_the_first_file_and_the_folder_of_exits_exists_before_it(run, monkeypatch):
    """Other nodes wait for the record, and an NFS client caches that a folder is missing."""
    write, written = attempts.write_json, []

    def checked(path: Path, record: Any) -> None:
        written.append(path)
        assert run.attempt(0).exits.is_dir()
        write(path, record)

    monkeypatch.setattr(attempts, "write_json", checked)
    begin(run)
    assert written[0] == run.attempt(0).record


def test_the_job_of_another_submission_starts_nothing(run):
    with pytest.raises(DoNotRestart) as ends:
        begin(run, job_id="8")
    assert ends.value.exit_code == requeue_policy.EXIT_DO_NOT_REQUEUE
    assert not run.attempts()


def test_a_new_attempt_removes_the_outcome_of_the_one_before(run):
    close_attempt(run, begin(run), {0: -9})
    assert run.failed.exists()
    begin(run, restart=1)
    assert not run.failed.exists()


def test_hosts_that_failed_since_the_newest_checkpoint_are_excluded(run):
    for restart, (host, checkpoint) in enumerate([("n1", 10), ("n2", 20), ("n3", 20)]):
        attempt = begin(run, restart)
        lay_over(attempt, ended="now", cause="lost", checkpoint_after=checkpoint, failed_nodes=[host])
    assert failed_hosts(run, attempt) == (["n2", "n3"], ["n1", "n2", "n3"])


@pytest.mark.parametrize(
    ("codes", "ends", "failed"),
    [
        ({}, {"external_cause": "lost"}, []),  # all nodes are silent
        ({1: 1}, {"external_cause": "lost"}, ["n1"]),
        (
            {0: 1},
            {"external_cause": "lost", "lost_hosts": ()},
            [],
        ),  # those that the scheduler names, if it does
        ({0: 1}, {"external_cause": "lost", "lost_hosts": ("n2",)}, ["n2"]),
        ({0: 1, 1: 1}, {}, ["n2"]),  # the host of the rank that failed
    ],
)
def test_the_failed_hosts_of_a_closed_attempt(run, codes, ends, failed):
    record = read_json(run.run_json)
    record["config"]["resources"]["gpus_per_node"] = 2
    write_json(run.run_json, record)
    attempt = begin(run)
    if not ends:
        write_json(
            attempt.error(3), {"rank": 3, "time": 1.0, "kind": "E", "message": "ECC", "cause": "crashed"}
        )
    close_attempt(run, attempt, codes, **ends)
    assert read_json(attempt.record)["failed_nodes"] == failed


@pytest.mark.parametrize("at_fault", [[], ["n2"]])
def test_nodes_at_fault_in_the_preflight_permit_a_requeue_without_them(run, at_fault):
    attempt = begin(run)
    write_json(attempt.preflight, {"message": "slow link", "at_fault": at_fault})
    status = close_attempt(run, attempt, {0: 69, 1: 69}, can_requeue=True)
    assert (status.cause, status.decision.requeue) == ("preflight_failed", bool(at_fault))


def test_an_end_that_the_disk_has_no_room_for_is_requeued_and_known_by_the_name_of_a_file(run, monkeypatch):
    attempt = begin(run)
    full = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    monkeypatch.setattr(attempts, "write_json", Mock(side_effect=full))
    status = close_attempt(run, attempt, {0: 1}, external_cause="preempted", can_requeue=True)
    assert (status.cause, status.decision.requeue) == ("preempted", True)
    assert str(status.message).endswith("not recorded: the disk quota is used up")
    record_requeue_failure(run, attempt)
    assert (unrecorded_outcome(run, attempt.number) or {})["cause"] == "preempted"


def test_a_new_submission_closes_the_attempts_that_nobody_closed(run):
    lost = begin(run)
    assert journal.revoke(run, 0, "lost", "presumed dead", starts=1)
    attempt = begin(run, submission=journal.write_intent(run, {}), job_id="8")
    record = read_json(lost.record)
    assert (record["cause"], record["next"], bool(record["ended"])) == ("lost", None, True)
    assert read_json(attempt.record)["ended"] is None


def test_a_lost_copy_may_still_be_writing(run):
    lost = begin(run)
    (lost.path / ".node-01.oom.json.7.tmp").symlink_to("renamed-meanwhile")
    newest = lost.path / "rank-00000.log"
    newest.touch()
    started = read_json(lost.record)["started"]
    assert begin(run, restart=1).number == 1
    record = read_json(lost.record)
    assert (record["cause"], record["next"]) == ("lost", "requeue")
    assert record["ended"] >= journal.utc_time(newest.stat().st_mtime) >= started


def test_a_start_is_current_until_another_one_begins_or_it_is_revoked(run):
    attempt = begin(run)
    assert is_current(run, attempt)
    run.attempt(1).path.mkdir()  # an NFS client may still cache the list of claims
    assert not is_current(run, attempt)
    run.attempt(1).path.rmdir()
    assert journal.revoke(run, 0, "lost", "presumed dead", starts=1)
    assert not is_current(run, attempt)


def test_a_restart_of_a_finished_job_is_no_failure(run):
    lay_over(begin(run), ended=journal.utc_now(), cause="finished")
    with pytest.raises(DoNotRestart) as ends:
        begin(run, restart=1)
    assert ends.value.exit_code == requeue_policy.EXIT_DONE
    claims = journal.entry(run, 0).claims()
    assert (journal.is_revoked(claims), claims[-1]["cause"]) == (True, "finished")


def test_the_last_of_the_lost_attempts_is_closed_when_the_run_is_given_up(run):
    lost = [begin(run, restart) for restart in range(3)]
    with pytest.raises(DoNotRestart) as ends:
        begin(run, restart=3)
    assert ends.value.exit_code == requeue_policy.EXIT_DO_NOT_REQUEUE
    records = [read_json(attempt.record) for attempt in lost]
    assert [(each["cause"], each["next"]) for each in records] == [
        ("lost", "requeue"), ("lost", "requeue"), ("lost", None),
    ]  # fmt: skip
    assert all(each["ended"] for each in records)
    assert read_json(run.failed)["message"] == records[-1]["message"] == str(ends.value)
