"""From wanted runs and existing ones to actions."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy, journal, processes
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import Job, JobStatus, SubmitError
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, StateName, read_state
from jobs.submission.cancel import cancel_runs
from jobs.submission.decide import plan_actions, resume_actions
from jobs.submission.submit import carry_out
from tests.support.jobs import (
    CODE,
    FakeScheduler,
    in_a_fork,
    states,
    submit,
    sweep_plan,
    wait_for,
    wait_until,
)

PLAN = sweep_plan("a", max_attempts=3)
KEY = PLAN.runs[0].config_key


def known(state: StateName, **fields: Any) -> RunState:
    fields = {"config_key": KEY, "code_hash": CODE, "attempts": 1} | fields
    return RunState(RunDir(Path("runs/demo/a")), state, **fields)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (known("planned"), "submit"),
        (known("submitting"), "submit"),
        (known("queued"), "in_progress"),
        (known("running"), "in_progress"),
        (known("running", code_hash="old"), "in_progress"),
        (known("done"), "up_to_date"),
        (known("done", code_hash="old"), "outdated"),
        (known("failed", retryable=True, cause="crashed"), "retry"),
        (known("failed", retryable=True, cause="crashed", attempts_without_progress=3), "blocked"),
        (known("failed", retryable=True, cause="crashed", attempts=9, attempts_without_progress=2), "retry"),
        (known("failed", retryable=False, cause="out_of_memory"), "blocked"),
        (known("failed", retryable=False, cause="refused", code_hash="old", attempts=9), "retry"),
        (known("lost", retryable=True, cause="lost"), "retry"),
        (known("lost", retryable=True, cause="lost", attempts_without_progress=3), "blocked"),
        (known("corrupt", config_key=None, message="x is not JSON"), "blocked"),
        (known("corrupt", message="x is not JSON"), "blocked"),
        (known("running", silent=True, message="silent for 12 min"), "in_progress"),
        (known("running", silent=True, code_hash="old"), "in_progress"),
        (known("lost", journaled=False, cause="lost"), "blocked"),
        (known("lost", journaled=False, cause="lost", code_hash="old"), "blocked"),
    ],
)
def test_what_is_done_about_a_run(state: RunState, kind: str) -> None:
    (action,) = plan_actions(PLAN, [state], CODE)
    assert action.kind == kind
    assert action.reason


def test_the_hash_of_the_other_code_is_named_as_the_reason() -> None:
    (action,) = plan_actions(PLAN, [known("done", code_hash="2-0123456789ab")], CODE)
    assert action.reason == "done with other code (2-0123456789ab)"


def test_a_new_run_is_submitted() -> None:
    assert [(action.kind, action.name) for action in plan_actions(PLAN, [], CODE)] == [("submit", "a")]


def test_runs_are_matched_by_what_they_compute_not_by_name() -> None:
    renamed = dataclasses.replace(known("done"), run=RunDir(Path("runs/demo/elsewhere")))
    (action,) = plan_actions(PLAN, [renamed], CODE)
    assert (action.kind, action.name) == ("up_to_date", "elsewhere")


def test_a_name_in_use_by_another_config_is_left_alone() -> None:
    (action,) = plan_actions(PLAN, [known("failed", config_key="another", retryable=True)], CODE)
    assert action.kind == "blocked"


def test_resume_overrides_what_stands_in_the_way() -> None:
    hopeless = known("failed", retryable=False, cause="refused", attempts=9)
    assert [action.kind for action in resume_actions([hopeless, known("done")], CODE)] == [
        "retry",
        "up_to_date",
    ]


def test_from_scratch_overrides_it_too_and_leaves_completed_runs() -> None:
    refused = known("failed", retryable=False, cause="refused")
    (action,) = plan_actions(PLAN, [refused], CODE, from_scratch=True)
    assert (action.kind, action.from_scratch) == ("retry", True)
    (done,) = plan_actions(PLAN, [known("done")], CODE, from_scratch=True)
    assert (done.kind, done.from_scratch) == ("up_to_date", False)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_from_scratch_keeps_the_checkpoints_aside(tmp_path: Path, elsewhere: bool) -> None:
    run = failed_once(tmp_path)
    folder = run.checkpoints
    if elsewhere:
        record = read_json(run.run_json)
        record["config"]["checkpoint"]["dir"] = str(tmp_path / "checkpoints")
        write_json(run.run_json, record)
        folder = tmp_path / "checkpoints" / "demo" / "a"
    for number in ("", "-2"):
        (folder / "step-00000005").mkdir(parents=True)
        resumed = resume_actions([read_state(run)], CODE, from_scratch=True)
        assert folder.exists()  # a dry run ends here
        (action,) = carry_out(resumed, FakeScheduler(), tmp_path)
        aside = folder.with_name(f"{folder.name}.aside{number}")
        assert (aside / "step-00000005").is_dir()
        assert not folder.exists()
        assert (action.kind, aside.name in action.reason) == ("retry", True)
        journal.revoke(run, 1, "launch_failed", "why")


def test_a_silent_run_is_started_again_only_by_its_name() -> None:
    silent = known("running", silent=True, message="silent for 12 min")
    assert [action.kind for action in resume_actions([silent], CODE)] == ["in_progress"]
    (action,) = resume_actions([silent], CODE, {silent.run.path})
    assert (action.kind, action.reason) == ("retry", "silent for 12 min, and presumed dead")
    assert [action.kind for action in resume_actions([known("running")], CODE, {silent.run.path})] == [
        "in_progress"
    ]


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("running", "in_progress"),
        ("done", "up_to_date"),
        ("failed", "blocked"),
        ("lost", "blocked"),
        ("planned", "blocked"),
    ],
)
def test_resume_passes_over_what_was_started_by_hand(state: StateName, kind: str) -> None:
    found = known(state, journaled=False, retryable=False)
    (action,) = resume_actions([found], CODE, {found.run.path})
    assert action.kind == kind
    if kind == "blocked":
        assert action.reason.startswith("not submitted by submit.py")


@given(
    state=st.sampled_from(get_args(StateName)),
    code=st.sampled_from([CODE, "old"]),
    retryable=st.booleans(),
    attempts=st.integers(0, 9),
    resume=st.booleans(),
)
def test_what_is_on_its_way_or_done_is_never_submitted(
    state: StateName, code: str, retryable: bool, attempts: int, resume: bool
) -> None:
    found = known(state, code_hash=code, retryable=retryable, attempts=attempts)
    (action,) = resume_actions([found], CODE) if resume else plan_actions(PLAN, [found], CODE)
    if state in ("queued", "running", "done", "corrupt"):
        assert not action.submits


def test_carrying_out_journals_and_records(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    (action,) = submit(PLAN, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")
    assert action.job_id == "elsewhere:1"
    assert cluster.submitted == [("a", 0)]
    record = RunRecord.model_validate(read_json(run.run_json))
    assert (record.config_key, record.cluster, record.sweep) == (KEY, "local", "demo")
    assert journal.entries(run)[0].parts == {"intent", "receipt"}


def test_the_same_command_again_does_nothing_more(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(PLAN, cluster, tmp_path)
    assert [action.kind for action in submit(PLAN, cluster, tmp_path)] == ["in_progress"]
    assert len(cluster.submitted) == 1


def test_a_job_that_is_gone_is_submitted_again(tmp_path: Path) -> None:
    cluster = FakeScheduler(status="ended")
    submit(PLAN, cluster, tmp_path)
    assert [action.kind for action in submit(PLAN, cluster, tmp_path)] == ["retry"]
    run = RunDir(tmp_path / "demo" / "a")
    assert journal.entry(run, 0).read("claim")["by"] == "revoked"  # type: ignore[index]


def test_a_cluster_that_does_not_answer_changes_nothing(tmp_path: Path) -> None:
    cluster = FakeScheduler(status="unknown")
    submit(PLAN, cluster, tmp_path)
    assert [action.kind for action in submit(PLAN, cluster, tmp_path)] == ["in_progress"]


def test_a_lost_receipt_is_found_again(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(PLAN, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")
    journal.entry(run, 0).path("receipt").unlink()
    cluster.found = "elsewhere:1"
    assert [action.kind for action in submit(PLAN, cluster, tmp_path)] == ["in_progress"]
    assert read_state(run).job_id == "elsewhere:1"


def test_a_job_that_starts_while_it_is_taken_for_lost_is_left_alone(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(PLAN, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")

    def poll(job_ids: list[str]) -> dict[str, Job]:
        me = processes.current_process().as_dict()
        journal.claim(run, 0, process=me, job_id=None, code_hash=CODE)
        return dict.fromkeys(job_ids, Job("pending"))

    cluster.poll = poll  # type: ignore[method-assign, assignment]
    journal.write_holder(
        run, 0, processes.current_process().as_dict() | {"start_ticks": -1}
    )  # lost, it seems
    assert [action.kind for action in submit(PLAN, cluster, tmp_path)] == ["in_progress"]
    assert len(cluster.submitted) == 1


def test_the_cluster_says_that_a_lost_run_lives() -> None:
    lost = known("lost", cluster="local", job_id="elsewhere:1", retryable=True)
    assert refresh([lost], FakeScheduler("running"))[0].state == "running"
    assert refresh([lost], FakeScheduler("ended"))[0].state == "lost"
    slurm = dataclasses.replace(lost, cluster="slurm")
    assert refresh([slurm], FakeScheduler("running"))[0].state == "lost", "not this cluster's job"


@pytest.mark.parametrize(
    ("cluster", "status", "kind"),
    [
        ("local", "unknown", "in_progress"),
        ("local", "running", "in_progress"),
        ("local", "ended", "retry"),
        ("slurm", "ended", "in_progress"),  # the command picked another cluster than the run's
    ],
)
def test_a_silent_run_is_started_again_only_when_its_own_cluster_has_lost_it(
    tmp_path: Path, cluster: str, status: JobStatus, kind: str
) -> None:
    submit(PLAN, FakeScheduler(), tmp_path)
    run = RunDir(tmp_path / "demo" / "a")
    process = processes.current_process().as_dict() | {"host": "far away"}
    journal.claim(run, 0, process=process, job_id=None, code_hash=CODE)
    os.utime(run.submissions, (1.0, 1.0))
    assert read_state(run).silent
    asked = FakeScheduler(status)
    asked.name = cluster
    (state,) = refresh([read_state(run)], asked)
    assert state.silent is (kind == "in_progress" and status != "running")
    assert [action.kind for action in submit(PLAN, asked, tmp_path)] == [kind]


def test_a_retry_with_the_same_code_leaves_the_plan_as_it_was(tmp_path: Path) -> None:
    run = failed_once(tmp_path)
    before = run.run_json.stat().st_ino  # a rewritten file is another one
    submit(PLAN, FakeScheduler(), tmp_path, code=made_with(run))
    assert journal.entry(run, 1).read("intent") is not None
    assert run.run_json.stat().st_ino == before
    assert not (run.attempt(0).path / "run.json").exists()


def test_a_retry_that_changes_the_plan_keeps_the_former_one_with_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failed_once(tmp_path)
    first = read_json(run.run_json)
    former = run.attempt(0).path / "run.json"
    submit(sweep_plan("a", max_attempts=3, time_limit_min=90), FakeScheduler("ended"), tmp_path)
    assert read_json(run.run_json)["config"]["job"]["time_limit_min"] == 90
    assert read_json(former) == first
    newer = code_copy.copy_code(tmp_path) | {"hash": "newer"}
    monkeypatch.setattr(code_copy, "copy_code", lambda root, **_: newer)
    submit(PLAN, FakeScheduler("ended"), tmp_path)
    second = read_json(run.run_json)
    assert (second["provenance"]["code"]["hash"], second["run_key"] != first["run_key"]) == ("newer", True)
    assert read_json(former) == first, "no attempt was made with the one between"


def failed_once(root: Path) -> RunDir:
    submit(PLAN, FakeScheduler(), root)
    run = RunDir(root / "demo" / "a")
    dead = processes.current_process().as_dict() | {"start_ticks": -1}
    journal.claim(run, 0, process=dead, job_id=None, code_hash=made_with(run))
    run.attempt(0).path.mkdir(parents=True)
    value = {"cause": "crashed", "attempt": 0, "message": "why", "ended": "", "retryable": True}
    write_json(run.failed, value)
    return run


def made_with(run: RunDir) -> str:
    code: str = read_json(run.run_json)["provenance"]["code"]["hash"]
    return code


def test_a_plan_that_cannot_be_read_is_not_resumed(tmp_path: Path) -> None:
    run = failed_once(tmp_path)
    run.run_json.write_text("{")
    (action,) = carry_out(resume_actions([read_state(run)], CODE), FakeScheduler(), tmp_path)
    assert action.kind == "blocked"
    assert str(run.run_json) in action.reason
    assert len(journal.entries(run)) == 1


def test_a_refused_job_leaves_no_run(tmp_path: Path) -> None:
    cluster = FakeScheduler()

    def refuse(submissions: object) -> list[str]:
        raise SubmitError("no such partition")

    cluster.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(SubmitError, match="partition"):
        submit(PLAN, cluster, tmp_path)
    assert states(tmp_path) == {}


def test_a_job_that_the_queue_has_no_place_for_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "file" / "queue"))
    with pytest.raises(ConfigError, match="Not a directory"):
        submit(PLAN, LocalScheduler(), tmp_path / "runs")
    assert states(tmp_path / "runs") == {}


def test_cancel_settles_what_waits(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(PLAN, cluster, tmp_path)
    assert [state.name for state in cancel_runs(list(states(tmp_path).values()), cluster)[0]] == ["a"]
    assert cluster.cancelled == ["elsewhere:1"]
    assert states(tmp_path)["a"].cause == "cancelled"
    assert cancel_runs(list(states(tmp_path).values()), cluster) == ([], {})


def test_attempts_with_older_code_are_forgiven(tmp_path: Path) -> None:
    cluster = FakeScheduler("unknown")
    submit(PLAN, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")
    dead = processes.current_process().as_dict() | {"start_ticks": -1}
    journal.claim(run, 0, process=dead, job_id=None, code_hash="old")
    assert [action.kind for action in submit(sweep_plan("a", max_attempts=1), cluster, tmp_path)] == ["retry"]
    intent = journal.entry(run, 1).read("intent")
    assert intent is not None
    assert (intent["attempts"], intent["attempts_before_code"]) == (1, 1)


def test_a_sweep_is_submitted_by_one_at_a_time(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def hold() -> None:
        with sweep_lock(tmp_path / "demo"):
            (tmp_path / "held").touch()
            wait_until(done.exists)

    pid = in_a_fork(hold)
    wait_until((tmp_path / "held").exists)
    with pytest.raises(ConfigError, match=f"pid {pid} on"), sweep_lock(tmp_path / "demo", wait_s=0.0):
        pass
    done.touch()
    with sweep_lock(tmp_path / "demo"):
        pass
    assert wait_for(pid) == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ConfigError, match="cannot write to"), sweep_lock(tmp_path / "runs" / "demo"):
        pass


def test_the_lock_is_no_run(tmp_path: Path) -> None:
    with sweep_lock(tmp_path / "demo"):
        assert states(tmp_path) == {}
        assert os.listdir(tmp_path / "demo") == [".lock"]
