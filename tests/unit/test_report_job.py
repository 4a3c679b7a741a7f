"""One job per sweep writes its report when the last run has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core import journal, run_code
from jobs.schedulers.interface import Job, SubmitError
from jobs.status.run_state import read_runs
from jobs.submission import report_job
from tests.support.jobs import FakeScheduler, states, submit, sweep_plan
from tests.support.verbs import end


class Follower(FakeScheduler):
    """A scheduler of report jobs. `refuses` them; `ended` are the jobs that have."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.ended: set[str] = set()
        self.commands: list[Sequence[str]] = []

    def submit_after(self, job, command, job_ids, profile) -> str:
        if self.refuses:
            raise SubmitError("no more jobs")
        self.commands.append(command)
        return super().submit_after(job, command, job_ids, profile)

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        return {job_id: Job("ended") if job_id in self.ended else self.job for job_id in job_ids}


@pytest.fixture
def cluster(tmp_path: Path) -> Follower:
    """Has the run `a` in its queue, as job `elsewhere:1`."""
    cluster = Follower()
    assert ensure(tmp_path, cluster) is None, "no run to wait for"
    submit(sweep_plan("a"), cluster, tmp_path)
    return cluster


def ensure(root: Path, cluster: Follower, *, anew: bool = True, own: int | None = None) -> str | None:
    return report_job.ensure(root, "demo", cluster, anew=anew, own=own)


def entry(root: Path, number: int = 0) -> journal.JournalEntry:
    return journal.entry(report_job.journal_of(root, "demo"), number)


def test_it_waits_for_all_active_runs_and_is_one(cluster, tmp_path):
    assert [ensure(tmp_path, cluster, anew=anew) for anew in (True, False)] == ["later:1"] * 2
    submit(sweep_plan("a", "b"), cluster, tmp_path)
    assert report_job.waits_for(tmp_path, "demo", [states(tmp_path)["a"]])
    assert not report_job.waits_for(tmp_path, "demo", [states(tmp_path)["b"]])
    assert ensure(tmp_path, cluster) == "later:2"
    assert [after for _, after in cluster.followed] == [["elsewhere:1"], ["elsewhere:1", "elsewhere:2"]]
    assert cluster.cancelled == ["later:1"]
    assert ensure(tmp_path, cluster, anew=False) == "later:2"
    assert [state.name for state in read_runs(tmp_path)] == ["a", "b"], "it is no run"


def test_a_report_job_that_cannot_be_cancelled_stays(cluster, tmp_path):
    ensure(tmp_path, cluster)
    cluster.refused = {"later:1": "denied"}
    ensure(tmp_path, cluster)
    assert entry(tmp_path).read("claim") is None


def test_jobs_of_another_cluster_are_neither_waited_for_nor_cancelled(cluster, tmp_path):
    cluster.is_cluster = "here"
    ensure(tmp_path, cluster)
    cluster.is_cluster = None
    assert ensure(tmp_path, cluster, anew=False) == "later:1", "its scheduler may not answer"
    cluster.is_cluster = "there"
    assert ensure(tmp_path, cluster) == "later:2", "the run has no cluster in its intent"
    assert cluster.cancelled == []


def test_it_runs_the_code_of_the_newest_submission(cluster, tmp_path):
    older = RunDir(tmp_path / "demo" / "a")
    record = read_json(older.run_json)
    newest = run_code.code_of_run(older, record)
    record["provenance"]["code"]["path"] = ".code/older"
    write_json(older.run_json, record)
    intent = journal.entry(older, 0).path("intent")
    write_json(intent, read_json(intent) | {"time": "2020-01-01T00:00:00.000+00:00"})
    submit(sweep_plan("a", "b"), cluster, tmp_path)
    ensure(tmp_path, cluster)
    (command,) = cluster.commands
    assert command[0] == str(newest / "submit.py")
    assert command[1:] == ["report", "demo", "--runs", str(tmp_path), "--sweep-end", "0"]


def test_one_whose_receipt_was_lost_is_found(cluster, tmp_path):
    ensure(tmp_path, cluster)
    entry(tmp_path).path("receipt").unlink()
    cluster.found = "later:1"
    assert ensure(tmp_path, cluster, anew=False) == "later:1"
    assert (entry(tmp_path).read("receipt") or {})["job_id"] == "later:1"


def test_one_that_adds_runs_ends_its_own_submission_once_another_follows(cluster, tmp_path):
    """If the other one is refused, or there is none, it still writes the report itself."""
    ensure(tmp_path, cluster)
    cluster.refuses = True
    with pytest.raises(SubmitError):
        ensure(tmp_path, cluster, own=0)
    assert [entry(tmp_path, number).read("claim") is None for number in (0, 1)] == [True, False]
    cluster.refuses = False
    ensure(tmp_path, cluster, own=0)
    assert (entry(tmp_path).read("claim") or {})["cause"] == "lost"
    assert cluster.cancelled == [], "it ends by itself"
    end(RunDir(tmp_path / "demo" / "a"), "finished")
    assert ensure(tmp_path, cluster, own=2) is None
    assert entry(tmp_path, 2).read("claim") is None


def test_one_that_has_ended_is_not_cancelled(cluster, tmp_path):
    ensure(tmp_path, cluster)
    cluster.ended = {"later:1"}
    assert ensure(tmp_path, cluster, anew=False) == "later:2"
    assert cluster.cancelled == []


@pytest.mark.parametrize(
    ("written_s", "again"), [(None, True), (-60, True), (60, False)], ids=["none", "an older one", "written"]
)
def test_one_that_ended_without_a_report_is_submitted_again_after_the_runs(
    cluster, tmp_path, written_s, again
):
    ensure(tmp_path, cluster)
    end(RunDir(tmp_path / "demo" / "a"), "finished")
    if written_s is not None:
        page = tmp_path / "demo" / "report" / "report.html"
        write_text(page, "")
        os.utime(page, (time.time() + written_s,) * 2)
    assert ensure(tmp_path, cluster, anew=False) is None, "it has not ended yet"
    cluster.ended = {"later:1"}
    assert ensure(tmp_path, cluster, anew=False) == ("later:2" if again else None)
    assert cluster.followed[1:] == ([("demo", [])] if again else [])
