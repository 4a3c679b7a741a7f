"""Opening an attempt while other processes write to the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import attempt as attempts
from jobs.core import journal, requeue_policy
from jobs.core.attempt import DoNotRestart, close_attempt, failed_hosts, is_current, open_attempt
from jobs.schedulers.local import supervisor
from jobs.status import outcome
from jobs.status.run_state import read_state
from tests.support.jobs import FakeScheduler, submit, sweep_plan


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A submitted run that no job has taken up."""
    submit(sweep_plan("a"), FakeScheduler(), tmp_path)
    submitted = RunDir(tmp_path / "demo" / "a")
    journal.write_receipt(submitted, 0, "7")
    return submitted


def begin(run: RunDir, restart: int = 0) -> Attempt:
    attempt = open_attempt(run, 0, cluster="slurm", job_id="7", nodes=["n1"], restart=restart)
    assert attempt is not None
    return attempt


def test_a_stop_request_counts_from_the_claim_on(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_folder_of_exits_exists_before_another_node_reads_the_attempt(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = attempts.write_json, []

    def checked(path: Path, record: Any) -> None:
        written.append(path)
        assert run.attempt(0).exits.is_dir()
        write(path, record)

    monkeypatch.setattr(attempts, "write_json", checked)
    attempt = begin(run)
    assert written[0] == attempt.record


def test_hosts_that_failed_since_the_newest_checkpoint_are_excluded(run: RunDir) -> None:
    closed = [("n1", 10), ("n2", 20), ("n3", 20)]
    for restart, (host, checkpoint) in enumerate(closed):
        attempt = begin(run, restart)
        record = read_json(attempt.record) | {"ended": "now", "cause": "lost", "checkpoint_after": checkpoint}
        write_json(attempt.record, record | {"failed_nodes": [host]})
    assert failed_hosts(run, attempt) == (["n2", "n3"], ["n1", "n2", "n3"])


def test_a_closed_attempt_names_the_hosts_of_the_ranks_that_failed(run: RunDir) -> None:
    config = read_json(run.run_json)
    config["config"]["resources"]["gpus_per_node"] = 2
    write_json(run.run_json, config)
    attempt = open_attempt(run, 0, cluster="slurm", job_id="7", nodes=["n1", "n2"])
    assert attempt is not None
    write_json(attempt.error(3), {"rank": 3, "time": 1.0, "kind": "E", "message": "ECC", "cause": "crashed"})
    close_attempt(run, attempt, {0: 1, 1: 1})
    assert read_json(attempt.record)["failed_nodes"] == ["n2"]


@pytest.mark.parametrize(("codes", "failed"), [({}, []), ({1: 1}, ["n1"])], ids=["all", "one"])
def test_silent_nodes_failed_only_if_another_node_recorded_its_exit(
    run: RunDir, codes: dict[int, int], failed: list[str]
) -> None:
    attempt = open_attempt(run, 0, cluster="slurm", job_id="7", nodes=["n1", "n2"])
    assert attempt is not None
    assert close_attempt(run, attempt, codes, external_cause="lost").cause == "lost"
    assert read_json(attempt.record)["failed_nodes"] == failed


@pytest.mark.parametrize("down", [(), ("n2",)])
def test_nodes_that_the_scheduler_names_are_the_failed_ones(run: RunDir, down: tuple[str, ...]) -> None:
    """The other nodes of a requeued job may not have recorded their exit yet."""
    attempt = open_attempt(run, 0, cluster="slurm", job_id="7", nodes=["n1", "n2", "n3"])
    assert attempt is not None
    close_attempt(run, attempt, {0: 1}, external_cause="lost", lost_hosts=down)
    assert read_json(attempt.record)["failed_nodes"] == list(down)


def test_a_new_submission_closes_the_attempts_that_nobody_closed(run: RunDir) -> None:
    lost = begin(run)
    assert journal.revoke(run, 0, "lost", "presumed dead", starts=1)
    number = journal.write_intent(run, {"cluster": "slurm"})
    attempt = open_attempt(run, number, cluster="slurm", job_id="8", nodes=["n1"])
    assert attempt is not None
    record = read_json(lost.record)
    assert (record["cause"], record["next"], bool(record["ended"])) == ("lost", None, True)
    assert read_json(attempt.record)["ended"] is None


def test_a_lost_copy_may_still_be_writing(run: RunDir) -> None:
    lost = begin(run)
    (lost.path / ".node-01.oom.json.7.tmp").symlink_to("renamed-meanwhile")
    assert begin(run, restart=1).number == 1
    assert read_json(lost.record)["cause"] == "lost"


def test_a_start_is_current_until_another_one_begins_or_it_is_revoked(run: RunDir) -> None:
    attempt = begin(run)
    assert is_current(run, attempt)
    assert journal.revoke(run, 0, "lost", "presumed dead", starts=1)
    assert not is_current(run, attempt)


def test_a_start_is_not_current_once_a_folder_of_a_newer_attempt_exists(run: RunDir) -> None:
    """Also where an NFS client still caches the list of claims."""
    attempt = begin(run)
    run.attempt(1).path.mkdir()
    assert not is_current(run, attempt)


def test_a_restart_of_a_finished_job_is_no_failure(run: RunDir) -> None:
    attempt = begin(run)
    ended = {"ended": journal.utc_now(), "cause": "finished"}
    write_json(attempt.record, read_json(attempt.record) | ended)
    with pytest.raises(DoNotRestart) as ends:
        begin(run, restart=1)
    assert ends.value.exit_code == requeue_policy.EXIT_DONE
    claims = journal.entry(run, 0).claims()
    assert (journal.is_revoked(claims), claims[-1]["cause"]) == (True, "finished")


def test_the_last_of_the_lost_attempts_is_closed_when_the_run_is_given_up(run: RunDir) -> None:
    lost = [begin(run, restart) for restart in range(3)]
    with pytest.raises(DoNotRestart) as ends:
        begin(run, restart=3)
    assert ends.value.exit_code == requeue_policy.EXIT_DO_NOT_REQUEUE
    records = [read_json(attempt.record) for attempt in lost]
    assert [(each["cause"], bool(each["ended"])) for each in records] == [("lost", True)] * 3
    assert [each["next"] for each in records] == ["requeue", "requeue", None]
    assert read_json(run.failed)["message"] == records[-1]["message"] == str(ends.value)


def test_the_supervisor_logs_an_end_that_it_cannot_record(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agents(*_: object) -> Mock:
        monkeypatch.setattr(attempts, "write_json", Mock(side_effect=PermissionError(13, "not permitted")))
        return Mock(watch=lambda limit_s: None, exit_codes={0: 1})

    monkeypatch.setattr(supervisor, "_Agents", agents)
    monkeypatch.setattr(supervisor.run_code, "code_problem", Mock(return_value=None))
    monkeypatch.setattr(outcome, "is_alive", Mock(return_value=False))
    supervisor.supervise(run, 0, "7")
    assert "not permitted" in (read_state(run).message or "")
