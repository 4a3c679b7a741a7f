"""`cancel` and `resume`: the jobs that end, those that go on, and runs that this host cannot cancel."""

from __future__ import annotations

import errno
import getpass
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import cancel, selection
from jobs.core import journal
from jobs.core.processes import current_process, host
from jobs.schedulers.interface import Batch, Job, SubmitError
from jobs.status.run_state import read_runs, read_state
from jobs.submission import cancel as cancel_jobs
from jobs.submission.cancel import await_end, cancel_runs
from tests.support.jobs import FakeScheduler, FakeSlurm
from tests.support.states import make_run, on_cluster, on_slurm
from tests.support.verbs import RUNS, ask, ask_json, refused

pytestmark = pytest.mark.usefixtures("cluster")
BY_ME = f"by `disttrain cancel` of {getpass.getuser()} on {host()}"
OUTCOME = {"attempt": 0, "cause": "cancelled", "message": "the scheduler ended the job", "retryable": True}


def change_intent(run: RunDir, **fields: str) -> None:
    path = journal.entry(run, 0).path("intent")
    write_json(path, read_json(path) | fields)


def actions(document: dict) -> list[str]:
    return [f"{each['sweep']}/{each['run']} {each['action']}" for each in document["actions"]]


def test_jobs_of_another_cluster_and_refused_ones_go_on(tmp_path: Path) -> None:
    for name in ("here", "there", "refused"):
        run = on_cluster(tmp_path, f"s/{name}", "there" if name == "there" else "here")
        journal.write_receipt(run, 0, name)
    cluster = FakeSlurm("pending")
    cluster.is_cluster, cluster.refused = "here", {"refused": "denied"}
    dry, _ = cancel_runs(read_runs(tmp_path), cluster, dry_run=True)
    assert ([state.name for state in dry], cluster.cancelled) == (["here", "refused"], [])
    hit, failures = cancel_runs(read_runs(tmp_path), cluster)
    assert ([state.name for state in hit], cluster.cancelled) == (["here"], ["here"])
    reasons = {path.name: reason for path, reason in failures.items()}
    assert reasons == {"there": "its job is on cluster 'there': cancel it there", "refused": "denied"}
    assert [path.parts[-3] for path in tmp_path.rglob("*.cancel.json")] == ["here"]
    found = {state.name: state.state for state in read_runs(tmp_path)}
    assert found == {"here": "failed", "there": "queued", "refused": "queued"}


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
    hit, failures = cancel_runs(read_runs(tmp_path), cluster)
    assert ([state.name for state in hit], list(failures.values())) == (["7"], ["denied"])
    assert sorted(tmp_path.rglob("*")) == before


def test_the_user_who_cancelled_a_run_is_on_record(tmp_path: Path) -> None:
    waiting, running = make_run(tmp_path, "s/waiting", "queued"), make_run(tmp_path, "s/running", "running")
    requeued = make_run(tmp_path, "s/requeued", "running")
    write_json(requeued.failed, OUTCOME | {"cause": "deadline", "next": "requeue"})
    cancel_runs(read_runs(tmp_path), FakeScheduler())
    assert read_state(running).state == "running", "until it has ended"
    for run, message in ((waiting, f"before it started, {BY_ME}"), (requeued, BY_ME)):
        assert (read_state(run).cause, read_state(run).message) == ("cancelled", message)
    revoked = [journal.is_revoked(journal.entry(run, 0).claims()) for run in (running, requeued)]
    assert revoked == [False, True], "a running job may still be requeued"
    for cause in ("cancelled", "killed", "lost"):
        write_json(running.failed, OUTCOME | {"cause": cause})
        assert (read_state(running).cause, read_state(running).message) == ("cancelled", BY_ME)
    write_json(running.failed, OUTCOME | {"cause": "out_of_memory"})
    assert read_state(running).cause == "out_of_memory"
    assert read_state(make_run(tmp_path, "s/other", "cancelled")).message == "cancelled while it ran"


def test_the_end_is_awaited_and_the_scheduler_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_jobs, "_QUERY_INTERVAL_S", 0.0)
    cluster = FakeSlurm("running")
    notified: list[int] = []
    hit, _ = cancel_runs([read_state(on_slurm(tmp_path, claimed=True))], cluster)
    (state,) = await_end(hit, cluster, within_s=1.2, notify=notified.append)
    assert (state.state, notified) == ("running", [1])
    cluster.job = Job("ended", "its job was cancelled", "cancelled")  # killed before it recorded its end
    (state,) = await_end(hit, cluster, within_s=60.0)
    assert state.displayed_state == "cancelled"


def test_cancel_and_resume(capsys: pytest.CaptureFixture[str], cluster: FakeScheduler) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    make_run(RUNS, "other/n1")
    assert "tiny/n2: runs on elsewhere" in refused(capsys, "cancel tiny", code=1)
    for name in ("n1", "n2"):
        journal.write_receipt(RunDir(RUNS / "tiny" / name), 0, f"{host()}:{name}")
    assert ask_json(capsys, "cancel tiny --dry-run")["cancelled"] == ["tiny/n1", "tiny/n2"]
    assert cluster.cancelled == []
    found = ask_json(capsys, "cancel tiny/n1 n2 other")
    assert (found["cancelled"], found["stopping"]) == (["tiny/n1", "tiny/n2"], [])
    assert cluster.cancelled == [f"{host()}:n1", f"{host()}:n2"]
    assert ask_json(capsys, "cancel tiny")["cancelled"] == []
    assert [run["state"] for run in ask_json(capsys, "status tiny")["runs"]] == ["cancelled", "cancelled"]
    dry = ask_json(capsys, "resume --dry-run")
    assert actions(dry) == ["tiny/n1 retry", "tiny/n2 retry"]
    assert len(cluster.submitted) == 2
    resumed = ask_json(capsys, "resume")
    assert resumed["actions"] == dry["actions"]
    assert [run["state"] for run in resumed["runs"]] == ["queued", "queued"]
    assert actions(ask_json(capsys, "resume n2")) == ["tiny/n2 in_progress"]
    assert len(cluster.submitted) == 4


def test_a_graceful_cancel_writes_a_stop_file_of_running_runs_alone(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    made = {state: make_run(RUNS, f"tiny/{state}", state) for state in ("running", "queued", "done")}
    for flag, expected in ((" --dry-run", []), ("", ["running"])):
        found = ask_json(capsys, f"cancel --graceful tiny{flag}")
        assert (found["stopping"], found["cancelled"]) == (["tiny/running"], ["tiny/queued"])
        assert [state for state, run in made.items() if run.stop.exists()] == expected
    assert cluster.cancelled == [f"{host()}:7"]


def test_what_cannot_be_cancelled_is_an_error_and_the_rest_is_cancelled(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        journal.write_receipt(make_run(RUNS, f"tiny/{name}", "queued"), 0, f"{host()}:{name}")
    change_intent(RunDir(RUNS / "tiny/a"), cluster="slurm")
    cluster.refused = {f"{host()}:b": "denied"}

    def one_answers(name: str) -> FakeScheduler:
        if name == "slurm":
            raise ConfigError("no Slurm controller answers")
        return cluster

    monkeypatch.setattr(selection, "available_scheduler", one_answers)
    found = ask_json(capsys, "cancel tiny", code=1)
    assert found["cancelled"] == ["tiny/c"]
    message = "tiny/a: not cancelled: no Slurm controller answers; tiny/b: not cancelled: denied"
    assert found["error"] == {"message": message, "exit_code": 1}
    cluster.refused = {}
    assert ask_json(capsys, "cancel tiny/b")["cancelled"] == ["tiny/b"], "the run still counts as queued"


def test_cancel_returns_when_its_jobs_have_ended(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(RUNS, "tiny/n1", "running")
    cluster.job = Job("running")
    with monkeypatch.context() as patched:
        patched.setattr(cancel, "END_TIMEOUT_S", 1.2)
        assert "its job is still ending" in refused(capsys, "cancel tiny", code=1)

    def ends_later(jobs: Mapping[str, str | None]) -> dict[str, str]:
        threading.Timer(0.3, write_json, (run.failed, OUTCOME)).start()
        return {}

    monkeypatch.setattr(cluster, "cancel", ends_later)
    assert ask(capsys, "cancel tiny") == "cancelled  tiny/n1 (was running)\n"
    assert "would move  tiny/n1 (cancelled)" in ask(capsys, "clean tiny --dry-run")
    assert actions(ask_json(capsys, "resume tiny")) == ["tiny/n1 retry"]


def test_a_run_started_by_hand_is_neither_cancelled_nor_resumed(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    run = make_run(RUNS, "by-hand/mine", "planned")
    run.attempt(0).path.mkdir(parents=True)
    assert refused(capsys, "cancel mine", code=1) == "by-hand/mine: started by hand: end it on its host\n"
    assert ask_json(capsys, "clean mine")["moved"] == []
    assert actions(ask_json(capsys, "resume mine")) == ["by-hand/mine in_progress"]
    os.utime(run.attempt(0).path, (1.0, 1.0))
    assert actions(ask_json(capsys, "resume mine", code=1)) == ["by-hand/mine blocked"]
    assert cluster.submitted == []


def test_a_silent_run_is_moved_or_resumed_only_by_its_own_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    cluster.job = Job("unknown")
    process = current_process().as_dict() | {"host": "far away"}
    for name in ("a", "b"):
        run = make_run(RUNS, f"tiny/{name}", "queued")
        journal.claim(run, 0, process=process, job_id=None, code_hash=code_hash())
        os.utime(run.submissions, (1.0, 1.0))
    for words in ("resume", "resume tiny"):
        assert actions(ask_json(capsys, words)) == ["tiny/a in_progress", "tiny/b in_progress"]
    assert ask_json(capsys, "clean tiny")["moved"] == []
    assert actions(ask_json(capsys, "resume a")) == ["tiny/a retry"]
    assert cluster.submitted == [("a", 1)]
    assert [run["run"] for run in ask_json(capsys, "clean tiny/b")["moved"]] == ["b"]


def test_resume_keeps_each_run_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedulers: dict[str | None, FakeScheduler] = {"local": FakeScheduler(), "slurm": FakeSlurm()}
    monkeypatch.setattr(selection, "scheduler_to_resume", lambda args, cluster, states: schedulers[cluster])
    for name in ("local", "slurm", "absent"):
        run = make_run(RUNS, f"tiny/{name}", "done" if name == "absent" else "failed")
        change_intent(run, cluster=name)
    ask(capsys, "resume --no-report")
    assert [each.submitted for each in schedulers.values()] == [[("local", 1)], [("slurm", 1)]]
    assert actions(ask_json(capsys, "resume absent")) == ["tiny/absent up_to_date"], (
        "its scheduler is not there"
    )
    (RUNS / "tiny/local").rename(RUNS.parent / "local")
    (RUNS / "tiny/slurm").rename(RUNS.parent / "slurm")
    assert ask_json(capsys, "resume")["actions"] == [], "without names, completed runs are not listed"


@pytest.mark.parametrize("error", [SubmitError("sbatch: invalid account"), ConfigError("no lock")])
def test_resume_shows_what_came_before_a_refusal(
    capsys: pytest.CaptureFixture[str],
    cluster: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    for name in ("first/a", "second/b", "second/c", "third/d"):
        make_run(RUNS, name, "failed")
    take = cluster.submit

    def refuse_b(batch: Batch) -> list[str]:
        if batch.submissions[0].run.name == "b":
            raise error
        return take(batch)

    monkeypatch.setattr(cluster, "submit", refuse_b)
    found = ask_json(capsys, "resume", code=1)
    assert actions(found) == ["first/a retry", "second/b blocked", "second/c deferred"]
    assert found["error"]["message"].startswith(str(error))
    assert cluster.followed == [("first", ["elsewhere:1"])], "its report is written"
    nothing = ask_json(capsys, "resume second third", code=1 if isinstance(error, SubmitError) else 2)
    assert (nothing["runs"], str(error) in nothing["error"]["message"]) == ([], True)
    assert cluster.submitted == [("a", 1)]
    monkeypatch.setattr(cluster, "submit", take)
    resumed = actions(ask_json(capsys, "resume"))
    assert resumed == ["first/a in_progress", "second/b retry", "second/c retry", "third/d retry"]
