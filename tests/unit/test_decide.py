"""From wanted runs and existing ones to actions, and what submitting writes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy, journal
from jobs.core.processes import current_process
from jobs.schedulers.interface import Job
from jobs.status.run_state import RunState, StateName, read_state
from jobs.submission.decide import plan_actions, resume_actions
from jobs.submission.submit import carry_out
from tests.support.jobs import CODE, FakeScheduler, submit, sweep_plan

PLAN = sweep_plan("a", max_attempts=3)
KEY = PLAN.runs[0].config_key
DEAD = current_process().as_dict() | {"start_ticks": -1}


def known(state: StateName, **fields: Any) -> RunState:
    """A run whose `attempts`, without files, have failed."""
    fields = {"config_key": KEY, "code_hash": CODE, "retryable": state in ("failed", "lost")} | fields
    return RunState(RunDir(Path("runs/demo/a")), state, **fields)


@pytest.mark.parametrize(
    ("state", "planned", "resumed"),
    [
        (known("planned"), "submit", "submit"),
        (known("submitting"), "submit", "submit"),
        (known("submitting", message="not known"), "in_progress", "in_progress"),
        (known("queued"), "in_progress", "in_progress"),
        (known("starting"), "in_progress", "in_progress"),
        (known("running", code_hash="old"), "in_progress", "in_progress"),
        (known("running", silent=True), "in_progress", "in_progress"),
        (known("done"), "up_to_date", "up_to_date"),
        (known("done", code_hash="old"), "outdated", "outdated"),
        (known("failed"), "retry", "retry"),
        (known("failed", attempts=9, attempts_before_code=7, claimed=True), "retry", "retry"),
        (known("failed", attempts=3, claimed=True), "blocked", "retry"),
        (known("failed", attempts=3), "retry", "retry"),
        (known("failed", retryable=False), "blocked", "retry"),
        (known("failed", retryable=False, code_hash="old", attempts=9, claimed=True), "retry", "retry"),
        (known("lost"), "retry", "retry"),
        (known("lost", attempts=3, claimed=True), "blocked", "retry"),
        (known("corrupt"), "blocked", "blocked"),
        (known("running", journaled=False), "in_progress", "in_progress"),
        (known("done", journaled=False), "up_to_date", "up_to_date"),
        (known("failed", journaled=False), "retry", "blocked"),
        (known("planned", journaled=False), "submit", "blocked"),
        (known("lost", journaled=False, code_hash="old"), "blocked", "blocked"),
    ],
)
def test_what_is_done_about_a_run(state: RunState, planned: str, resumed: str) -> None:
    named = set() if state.silent else {state.run.path}
    (plan,), (resume,) = plan_actions(PLAN, [state], CODE), resume_actions([state], CODE, named)
    assert (plan.kind, resume.kind, plan.from_scratch) == (planned, resumed, False)
    assert plan.reason
    (plan,) = plan_actions(PLAN, [state], CODE, from_scratch=True)
    (resume,) = resume_actions([state], CODE, from_scratch=True)
    assert (plan.from_scratch, resume.from_scratch) == (plan.submits, resume.submits)
    assert (plan.kind, resume.kind) == (resumed, resumed) or not state.journaled


def test_runs_are_matched_by_their_config_then_by_their_name() -> None:
    renamed = replace(known("done"), run=RunDir(Path("runs/demo/elsewhere")))
    for existing, kind, name in (
        ([], "submit", "a"),
        ([renamed], "up_to_date", "elsewhere"),
        ([renamed, known("failed", config_key="another")], "up_to_date", "elsewhere"),
        ([known("failed", config_key="another")], "blocked", "a"),
    ):
        (action,) = plan_actions(PLAN, existing, CODE)
        assert (action.kind, action.name) == (kind, name)


def test_a_run_without_a_readable_config_is_found_by_its_name() -> None:
    (action,) = plan_actions(PLAN, [known("corrupt", config_key=None, message="damaged")], CODE)
    assert (action.kind, action.reason) == ("blocked", "damaged")


def test_a_silent_run_is_resumed_only_by_its_name() -> None:
    silent, healthy = known("running", silent=True, message="silent"), known("running")
    kinds = [resume_actions([state], CODE, {silent.run.path})[0].kind for state in (silent, healthy)]
    assert kinds == ["retry", "in_progress"]


def test_a_resumed_command_is_outdated_where_its_own_folder_has_changed() -> None:
    actions = [known("done", code_hash="c-1", source="/x", stale=stale) for stale in (False, True)]
    assert [action.kind for action in resume_actions(actions, CODE)] == ["up_to_date", "outdated"]


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
        (action,) = carry_out(
            resume_actions([read_state(run)], CODE, from_scratch=True), FakeScheduler(), tmp_path
        )
        aside = folder.with_name(f"{folder.name}.aside{number}")
        assert (aside / "step-00000005").is_dir()
        assert not folder.exists()
        assert (action.kind, aside.name in action.reason) == ("retry", True)
        journal.revoke(run, 1, "launch_failed", "why")


def submitted(root: Path, cluster: FakeScheduler, code: str = CODE) -> list[str]:
    return [action.kind for action in submit(PLAN, cluster, root, code)]


def test_a_submission_is_recorded_once(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    (action,) = submit(PLAN, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")
    record = RunRecord.model_validate(read_json(run.run_json))
    assert (record.config_key, record.cluster, record.sweep) == (KEY, "local", "demo")
    assert (action.job_id, read_state(run).job_id) == ("elsewhere:1", "elsewhere:1")
    assert submitted(tmp_path, cluster) == ["in_progress"]
    cluster.job = Job("unknown")
    assert submitted(tmp_path, cluster) == ["in_progress"]
    journal.entry(run, 0).path("receipt").unlink()
    cluster.found = "elsewhere:1"
    assert submitted(tmp_path, cluster) == ["in_progress"]
    assert (read_state(run).job_id, cluster.submitted) == ("elsewhere:1", [("a", 0)])
    cluster.job = Job("ended")
    assert submitted(tmp_path, cluster) == ["retry"]
    assert journal.is_revoked(journal.entry(run, 0).claims())


def test_a_job_that_starts_while_it_is_taken_for_lost_is_left_alone(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(PLAN, cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a")

    def start_meanwhile(job_ids: list[str]) -> dict[str, Job]:
        journal.claim(run, 0, process=current_process().as_dict(), job_id=None, code_hash=CODE)
        return dict.fromkeys(job_ids, Job("pending"))

    cluster.poll = start_meanwhile
    journal.write_holder(run, 0, DEAD)
    assert submitted(tmp_path, cluster) == ["in_progress"]
    assert len(cluster.submitted) == 1


def failed_once(root: Path, code: str | None = None) -> RunDir:
    submit(PLAN, FakeScheduler(), root)
    run = RunDir(root / "demo" / "a")
    journal.claim(run, 0, process=DEAD, job_id=None, code_hash=code or made_with(run))
    run.attempt(0).path.mkdir(parents=True)
    write_json(run.failed, {"cause": "crashed", "attempt": 0, "message": "why", "retryable": True})
    return run


def made_with(run: RunDir) -> str:
    code: str = read_json(run.run_json)["provenance"]["code"]["hash"]
    return code


def test_a_retry_keeps_the_former_record_with_its_attempt_if_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failed_once(tmp_path)
    first, inode = read_json(run.run_json), run.run_json.stat().st_ino
    former = run.attempt(0).path / "run.json"
    submit(PLAN, FakeScheduler(), tmp_path, code=made_with(run))
    assert (len(journal.entries(run)), run.run_json.stat().st_ino, former.exists()) == (2, inode, False)
    submit(sweep_plan("a", max_attempts=3, time_limit_min=90), FakeScheduler("ended"), tmp_path)
    assert read_json(run.run_json)["config"]["job"]["time_limit_min"] == 90
    assert read_json(former) == first
    newer = code_copy.copy_code(tmp_path) | {"hash": "newer"}
    monkeypatch.setattr(code_copy, "copy_code", lambda root, **_: newer)
    submit(PLAN, FakeScheduler("ended"), tmp_path)
    assert (made_with(run), read_json(run.run_json)["run_key"] != first["run_key"]) == ("newer", True)
    assert read_json(former) == first, "no attempt was made with the one between"


@pytest.mark.parametrize(("code", "before_code"), [("old", 1), (None, 0)])
def test_attempts_with_other_code_are_counted_apart(
    tmp_path: Path, code: str | None, before_code: int
) -> None:
    run = failed_once(tmp_path, code)
    submit(PLAN, FakeScheduler(), tmp_path, code=made_with(run))
    intent = journal.entry(run, 1).read("intent") or {}
    assert (intent["attempts"], intent["attempts_before_code"]) == (1, before_code)


def test_a_record_that_cannot_be_read_is_not_resumed(tmp_path: Path) -> None:
    run = failed_once(tmp_path)
    run.run_json.write_text("{")
    (action,) = carry_out(resume_actions([read_state(run)], CODE), FakeScheduler(), tmp_path)
    assert (action.kind, str(run.run_json) in action.reason) == ("blocked", True)
    assert len(journal.entries(run)) == 1
