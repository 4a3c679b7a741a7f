"""`cancel` and `resume`, and runs that this host cannot cancel."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import pytest

import submit
from disttrain.errors import ConfigError
from disttrain.records.collect_provenance import code_hash
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import cancel, selection
from jobs.core import journal
from jobs.core.processes import current_process, host
from jobs.schedulers.interface import Batch, Job, SubmitError
from jobs.status.run_state import read_state
from tests.support.jobs import FakeScheduler, FakeSlurm
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")


def test_cancel_and_resume(capsys: pytest.CaptureFixture[str], cluster: FakeScheduler) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    make_run(RUNS, "other/n1")
    elsewhere = read_state(RunDir(RUNS / "tiny/n2"))
    assert submit.main(["cancel", "tiny"]) == 1  # the cluster of these tests is not this host
    assert "tiny/n2: runs on elsewhere: cancel it on that host" in capsys.readouterr().err
    for job_id, name in ((5, "n1"), (6, "n2")):
        journal.write_receipt(RunDir(RUNS / "tiny" / name), 0, f"{host()}:{job_id}")
    out = ask(capsys, "cancel tiny/n1 n2 other")
    assert "cancelled  tiny/n1 (was queued)" in out
    assert "1 more had ended" in out
    assert cluster.cancelled == [f"{host()}:5", f"{host()}:6"]
    assert "nothing to cancel" in ask(capsys, "cancel tiny")
    table = ask(capsys, "status tiny")
    assert "2 runs: 2 cancelled" in table
    out = ask_json(capsys, "resume")
    names = [elsewhere.name.replace("n2", "n1"), elsewhere.name]
    assert [(action["run"], action["action"]) for action in out["actions"]] == [(n, "retry") for n in names]
    assert [(run["run"], run["state"]) for run in out["runs"]] == [(name, "queued") for name in names]
    assert "in progress" in ask(capsys, "resume tiny")
    ask(capsys, "resume n2")


def test_a_dry_run_of_cancel_and_resume_changes_nothing(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in RUNS.rglob("*") if path.is_file()}

    ask(capsys, "run tiny.yaml")
    journal.write_receipt(RunDir(RUNS / "tiny/n1"), 0, f"{host()}:5")
    make_run(RUNS, "other/n1", "running")
    make_run(RUNS, "other/n2", "failed")
    make_run(RUNS, "other/n4", "done")
    before, submitted = files(), len(cluster.submitted)
    assert "would cancel  tiny/n1 (is queued)\n" in ask(capsys, "cancel tiny --dry-run")
    out = ask(capsys, "cancel other --graceful --dry-run")
    assert out.startswith("would stop  other/n1 (is running)\n2 more had ended")
    assert ask_json(capsys, "cancel tiny --dry-run")["cancelled"] == ["tiny/n1"]
    out = ask(capsys, "resume --dry-run")
    assert "would submit again  other/n2 " in out, "with its sweep, as there are two"
    assert "3 runs: 1 would submit again, 2 in progress (cluster: " in out
    assert out.endswith("dry run: nothing was written or submitted\n")
    actions = ask_json(capsys, "resume other --dry-run")["actions"]
    assert {each["run"]: each["action"] for each in actions}["n2"] == "retry"
    assert (files(), cluster.cancelled, len(cluster.submitted)) == (before, [], submitted)


def test_a_graceful_cancel_writes_a_stop_file_on_any_cluster(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    run = make_run(RUNS, "tiny/n1", "running")
    make_run(RUNS, "tiny/n2")
    out = ask(capsys, "cancel --graceful tiny")
    assert "stopping  tiny/n1: it may save first" in out
    assert "1 more had ended" in out
    assert run.stop.exists()
    assert cluster.cancelled == []


def test_cancel_ends_what_it_can_when_a_cluster_does_not_answer(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        make_run(RUNS, f"tiny/{name}", "queued")
    intent = journal.entry(RunDir(RUNS / "tiny/a"), 0).path("intent")
    write_json(intent, read_json(intent) | {"cluster": "slurm"})

    def one_answers(name: str) -> FakeScheduler:
        if name == "slurm":
            raise ConfigError("no Slurm controller answers")
        return cluster

    monkeypatch.setattr(selection, "available_scheduler", one_answers)
    assert submit.main(["cancel", "tiny"]) == 1
    said = capsys.readouterr()
    assert said.out == "cancelled  tiny/b (was queued)\n"
    assert said.err == "tiny/a: not cancelled: no Slurm controller answers\n"
    assert cluster.cancelled == [f"{host()}:7"]


def test_a_cancelled_run_is_over_for_every_verb_when_cancel_returns(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(RUNS, "tiny/n1", "running")

    def ends_later(jobs: Mapping[str, str | None]) -> dict[str, str]:
        outcome = {"attempt": 0, "cause": "cancelled", "message": None, "retryable": True}
        threading.Timer(0.3, write_json, (run.failed, outcome)).start()
        return {}

    monkeypatch.setattr(cluster, "cancel", ends_later)
    cluster.job = Job("running")
    assert ask(capsys, "cancel tiny") == "cancelled  tiny/n1 (was running)\n"
    assert "cancelled  20/40" in ask(capsys, "status")
    assert "1 run: 1 cancelled" in ask(capsys, "watch tiny")
    assert "nothing to cancel" in ask(capsys, "cancel tiny")
    assert "would move  tiny/n1 (cancelled)" in ask(capsys, "clean tiny --dry-run")
    assert "1 submitted again" in ask(capsys, "resume tiny")


def test_cancel_of_a_job_that_does_not_end_in_time(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.job = Job("running")
    monkeypatch.setattr(cancel, "END_TIMEOUT_S", 1.2)
    make_run(RUNS, "tiny/a", "running")
    assert submit.main(["cancel", "tiny"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "waiting at most 1.2 s for 1 run to end; Ctrl-C stops waiting, not the end",
        "tiny/a: its job is still ending; `status` shows its end",
    ]


def test_resume_with_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1")
    assert ask(capsys, "resume").startswith("nothing to resume")
    assert ask_json(capsys, "resume")["runs"] == []


def by_hand(name: str) -> RunDir:
    """A run that was started by hand, and runs."""
    run = make_run(RUNS, name, "planned")
    run.attempt(0).path.mkdir(parents=True)
    return run


def test_a_run_started_by_hand_is_not_cancelled(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    run = by_hand("by-hand/mine")
    assert submit.main(["cancel", "mine"]) == 1
    assert capsys.readouterr().err == "by-hand/mine: started by hand: end it on its host\n"
    assert "left   by-hand/mine: it is running; started by hand" in ask(capsys, "clean mine")
    assert "1 in progress" in ask(capsys, "resume mine")
    os.utime(run.attempt(0).path, (1.0, 1.0))
    assert "not submitted by submit.py: started by hand" in ask(capsys, "resume mine", code=1)
    assert cluster.submitted == []


def silent(name: str) -> RunDir:
    """A run on another host, without a sign of life for long."""
    run = make_run(RUNS, name, "queued")
    process = current_process().as_dict() | {"host": "far away"}
    journal.claim(run, 0, process=process, job_id=None, code_hash=code_hash())
    os.utime(run.submissions, (1.0, 1.0))
    return run


def test_a_silent_run_is_moved_only_by_its_own_name(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    cluster.job = Job("unknown")
    silent("tiny/a")
    assert "  silent for " in ask(capsys, "status")
    for words in ("resume", "resume tiny"):
        assert "1 in progress" in ask(capsys, words)
    assert "left   tiny/a: it is running; silent for " in ask(capsys, "clean tiny")
    assert cluster.submitted == []
    assert "1 submitted again" in ask(capsys, "resume a")
    assert cluster.submitted == [("a", 1)]
    silent("tiny/b")
    assert "moved  tiny/b (running)" in ask(capsys, "clean tiny/b")


def test_a_job_that_is_not_ended_is_a_failure(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    for name, job_id in (("a", "5"), ("b", "6")):
        journal.write_receipt(make_run(RUNS, f"tiny/{name}", "queued"), 0, f"{host()}:{job_id}")
    cluster.refused = {f"{host()}:5": "scancel did not end job 5: denied"}
    assert submit.main(["cancel", "tiny"]) == 1
    said = capsys.readouterr()
    assert said.out == "cancelled  tiny/b (was queued)\n"
    assert said.err == "tiny/a: not cancelled: scancel did not end job 5: denied\n"
    cluster.refused = {}
    assert "cancelled  tiny/a (was queued)" in ask(capsys, "cancel tiny"), "the run still counts as queued"


def test_resume_keeps_each_run_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedulers: dict[str | None, FakeScheduler] = {"local": FakeScheduler(), "slurm": FakeSlurm()}
    monkeypatch.setattr(selection, "scheduler_to_resume", lambda args, cluster, states: schedulers[cluster])
    for name in ("local", "slurm", "done"):
        run = make_run(RUNS, f"tiny/{name}", "done" if name == "done" else "failed")
        intent = journal.entry(run, 0).path("intent")
        write_json(intent, read_json(intent) | {"cluster": name})
    out = ask(capsys, "resume --no-report")
    assert [each.submitted for each in schedulers.values()] == [[("local", 1)], [("slurm", 1)]]
    assert "2 runs: 2 submitted again (cluster: local, slurm)" in out
    assert "1 done" in ask(capsys, "resume tiny/done"), "without its scheduler, which is not there"


def test_resume_shows_the_runs_of_a_sweep_that_was_refused_in_part(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tiny/a", "tiny/b", "tiny/c", "tiny/d"):
        make_run(RUNS, name, "done" if name == "tiny/d" else "failed")
    submit_batch = cluster.submit

    def refuse_b(batch: Batch) -> list[str]:
        if batch.submissions[0].run.name == "b":
            raise SubmitError("sbatch: invalid account")
        return submit_batch(batch)

    monkeypatch.setattr(cluster, "submit", refuse_b)
    assert submit.main(["resume"]) == 1
    said = capsys.readouterr()
    job_id = journal.entries(RunDir(RUNS / "tiny/a"))[-1].read("receipt")["job_id"]
    assert f"submitted again  a    {job_id}" in said.out
    assert [line.split(maxsplit=2)[:2] for line in said.out.splitlines()[2:4]] == [
        ["blocked", "b"],
        ["deferred", "c"],
    ]
    assert "sbatch: invalid account" in said.out
    assert "not submitted after the refusal of another" in said.out
    assert "report: runs/tiny/report/report.html" in said.out
    assert said.err.startswith("error: sbatch: invalid account; list the runs: submit.py status tiny")
    cluster.submit = submit_batch  # type: ignore[method-assign]
    document = ask_json(capsys, "resume tiny")
    assert [each["action"] for each in document["actions"]] == [
        "in_progress", "retry", "retry", "up_to_date",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [SubmitError("sbatch: invalid account"), ConfigError("no lock")])
def test_resume_shows_the_sweeps_before_a_refusal(
    capsys: pytest.CaptureFixture[str],
    cluster: FakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    for name in ("first/a", "second/b", "third/c"):
        make_run(RUNS, name, "failed")
    submit_batch = cluster.submit

    def refuse_second(batch: Batch) -> list[str]:
        if batch.submissions[0].run.sweep == "second":
            raise error
        return submit_batch(batch)

    monkeypatch.setattr(cluster, "submit", refuse_second)
    assert submit.main(["resume"]) == 1
    said = capsys.readouterr()
    lines = [line.split()[:3] for line in said.out.splitlines()[1:3]]
    assert lines == [["submitted", "again", "first/a"], ["blocked", "second/b", str(error).split()[0]]]
    assert "report: runs/first/report/report.html" in said.out
    assert said.err.startswith(f"error: {error}")
    assert [name for name, _ in cluster.submitted] == ["a"]
    document = ask_json(capsys, "resume second third", code=1 if isinstance(error, SubmitError) else 2)
    assert (document["runs"], str(error) in document["error"]["message"]) == ([], True)
