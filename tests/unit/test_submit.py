"""Batches of runs: announced together, submitted together, as many as the limits of jobs permit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_text
from disttrain.records.run_directory import RunDir, checkpoint_steps
from jobs.core import journal
from jobs.schedulers.interface import (
    Batch,
    LimitReached,
    Submission,
    SubmitError,
    SubmitQuota,
    Unreachable,
    submission_tag,
)
from jobs.submission.decide import Action, plan_actions
from jobs.submission.submit import carry_out
from tests.support.jobs import CODE, FakeScheduler, repeats, states, submit, sweep_plan

NAMED = "the limit of 9 jobs (MaxSubmitJobs of account a)"


class Arrays(FakeScheduler):
    """Takes arrays of runs, up to `limit` runs in all. `error`: its answer to all batches."""

    def __init__(self, array: int = 3, limit: int | None = None) -> None:
        super().__init__()
        self.has_room = SubmitQuota(array=array)
        self.limit = limit
        self.error: SubmitError | None = None
        self.intents: list[Mapping[str, Any] | None] = []

    def submit(self, batch: Batch) -> list[str]:
        entries = [journal.entry(each.run, each.number) for each in batch.submissions]
        self.intents += [entry.read("intent") for entry in entries]
        assert not any(entry.read("receipt") for entry in entries)
        if self.error is not None:
            raise self.error
        if self.limit is not None and len(self.submitted) + len(batch.submissions) > self.limit:
            raise LimitReached("the limit of jobs")
        return super().submit(batch)


def run_of(root: Path, name: str) -> RunDir:
    return RunDir(root / "demo" / name)


def kinds(actions: list[Action]) -> list[str]:
    return [action.kind for action in actions]


def names_and_states(root: Path) -> dict[str, str]:
    return {name: state.state for name, state in states(root).items()}


def test_runs_of_one_shape_are_a_batch_whatever_their_config(tmp_path):
    cluster = Arrays()
    plan, wide = repeats(2, "a", "b"), repeats(1, "wide", nodes=2)
    runs = (*plan.runs[:1], *wide.runs, *plan.runs[1:])
    actions = submit(dataclasses.replace(plan, runs=runs), cluster, tmp_path)
    assert cluster.batches == [["a-r0", "b-r0", "a-r1"], ["wide-r0"], ["b-r1"]]
    assert [action.name for action in actions] == ["a-r0", "wide-r0", "b-r0", "a-r1", "b-r1"]
    receipts = [journal.entry(run_of(tmp_path, action.name), 0).read("receipt") or {} for action in actions]
    assert [receipt["job_id"] for receipt in receipts] == [action.job_id for action in actions]
    assert {action.job_id for action in actions} == {f"elsewhere:{number}" for number in range(1, 6)}


def test_without_arrays_the_order_stays(tmp_path):
    cluster = Arrays(array=1)
    submit(repeats(2, "a", "b"), cluster, tmp_path)
    assert cluster.batches == [["a-r0"], ["b-r0"], ["a-r1"], ["b-r1"]]


@pytest.mark.parametrize("count", [1, 3])
def test_all_runs_of_a_batch_are_announced_before_any_is_submitted(tmp_path, count):
    """The name of the cluster: clusters that share a file system give the same ids to different jobs."""
    cluster = Arrays()
    cluster.is_cluster = "here"
    submit(repeats(count, "a"), cluster, tmp_path)
    intents = [intent or {} for intent in cluster.intents]
    assert [intent["index"] for intent in intents] == ([None] if count == 1 else [0, 1, 2])
    assert {intent["handle"] for intent in intents} == {submission_tag(run_of(tmp_path, "a-r0"), 0)}
    assert {intent["cluster_name"] for intent in intents} == {"here"}


def test_a_tag_is_of_one_folder_and_one_submission(tmp_path):
    runs = [RunDir(tmp_path / root / "demo" / "a") for root in ("runs", "elsewhere")]
    assert len({submission_tag(run, number) for run in runs for number in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("names", "name"), [(["n2-r3"], "n2-r3"), (["n2-r3", "n2-r4"], "n2"), (["n2-r3", "n2-lr1-r3"], "demo")]
)
def test_the_name_of_a_batch(names, name, tmp_path):
    assert Batch([Submission(run_of(tmp_path, each), 0, "") for each in names], {}, None).name == name


def test_runs_above_a_known_limit_are_planned_and_not_announced(tmp_path):
    cluster = Arrays()
    cluster.has_room = SubmitQuota(array=3, jobs=4, limit=NAMED)
    actions = submit(repeats(3, "a", "b"), cluster, tmp_path)
    assert cluster.batches == [["a-r0", "b-r0", "a-r1"], ["b-r1"]]
    deferred = {action.name: action.reason for action in actions if action.kind == "deferred"}
    assert deferred == dict.fromkeys(("a-r2", "b-r2"), f"{NAMED} is reached")
    assert names_and_states(tmp_path) | dict.fromkeys(deferred, "planned") == names_and_states(tmp_path)
    assert journal.entries(run_of(tmp_path, "b-r2")) == []
    cluster.has_room = SubmitQuota(array=3)
    submit(repeats(3, "a", "b"), cluster, tmp_path)
    assert cluster.batches[2:] == [["a-r2", "b-r2"]], "the same command submits them later"


@pytest.mark.parametrize("limit", range(8))
def test_below_an_unknown_limit_as_many_runs_as_fit_are_submitted_and_none_twice(limit, tmp_path):
    cluster = Arrays(array=7, limit=limit)
    actions = submit(repeats(7, "a"), cluster, tmp_path)
    assert [name for name, _ in cluster.submitted] == [f"a-r{number}" for number in range(limit)]
    assert kinds(actions) == ["submit"] * limit + ["deferred"] * (7 - limit)
    assert [*names_and_states(tmp_path).values()] == ["queued"] * limit + ["planned"] * (7 - limit)


def test_a_job_that_journals_itself_queries_no_quota(tmp_path):
    cluster = Arrays()
    cluster.has_room = SubmitQuota(jobs=0)
    (action,) = carry_out(plan_actions(sweep_plan("a"), [], CODE), cluster, tmp_path, current_job="7")
    assert (action.job_id, cluster.submitted) == ("7", [])
    record = read_json(run_of(tmp_path, "a").run_json)
    assert record["provenance"]["code"]["taken"] == "start"


def test_a_refusal_removes_new_runs_alone_and_leaves_their_own_files(tmp_path):
    cluster = Arrays()
    cluster.has_room = SubmitQuota(jobs=1)
    submit(repeats(3, "a"), cluster, tmp_path)  # the other two are deferred
    cluster.has_room, cluster.error = SubmitQuota(array=9), SubmitError("no such partition")
    own_file = run_of(tmp_path, "a-r4").path / "notes.txt"
    write_text(own_file, "mine")
    with pytest.raises(SubmitError):
        submit(repeats(5, "a"), cluster, tmp_path)
    after = {name: (state.state, state.message) for name, state in states(tmp_path).items()}
    refused = ("planned", "no such partition")
    assert after == {"a-r0": ("queued", None), "a-r1": refused, "a-r2": refused}
    assert [path for path in own_file.parent.rglob("*") if path.is_file()] == [own_file]
    assert not run_of(tmp_path, "a-r3").path.exists()


def test_after_a_refusal_no_other_group_is_submitted(tmp_path):
    cluster = Arrays(array=1)
    cluster.error = SubmitError("no such partition")
    actions = carry_out(plan_actions(sweep_plan("a", "b"), [], CODE), cluster, tmp_path)
    assert kinds(actions) == ["blocked", "deferred"]
    assert len(cluster.intents) == 1
    assert states(tmp_path) == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [(SubmitError("no such partition"), "blocked"), (LimitReached("the limit"), "deferred")],
)
def test_a_refused_start_from_scratch_keeps_the_checkpoints(error, kind, tmp_path):
    cluster, plan = Arrays(), repeats(2, "a")
    cluster.has_room = SubmitQuota(jobs=0)
    submit(plan, cluster, tmp_path)
    runs = [run_of(tmp_path, f"a-r{number}") for number in range(2)]
    for run in runs:
        (run.checkpoints / "step-00000005").mkdir(parents=True)
    cluster.has_room = SubmitQuota(array=3)
    for cluster.error, expected in ((error, kind), (None, "submit")):
        actions = plan_actions(plan, [*states(tmp_path).values()], CODE, from_scratch=True)
        assert kinds(carry_out(actions, cluster, tmp_path)) == [expected] * 2
        for run in runs:
            folders = [path.name for path in run.path.glob("checkpoints*")]
            assert (len(folders), "checkpoints" in folders) == (1, expected != "submit")
            assert checkpoint_steps(run.path / folders[0]) == [5]


def test_after_no_answer_the_jobs_are_searched_for_and_not_submitted_again(tmp_path, monkeypatch):
    cluster, found = Arrays(), None

    def find(submissions: list[Submission]) -> list[str | None]:
        if found is None:
            raise Unreachable("socket timed out")
        return [found, None][: len(submissions)]

    monkeypatch.setattr(cluster, "find", find)
    cluster.error = Unreachable("socket timed out")
    with pytest.raises(Unreachable):
        submit(repeats(2, "a"), cluster, tmp_path)
    assert {*names_and_states(tmp_path).values()} == {"submitting"}
    actions = submit(repeats(2, "a"), cluster, tmp_path)
    assert kinds(actions) == ["in_progress"] * 2
    assert "socket timed out" in actions[0].reason
    found, cluster.error = "7_0", None
    assert kinds(submit(repeats(2, "a"), cluster, tmp_path)) == ["in_progress", "submit"]
    assert states(tmp_path)["a-r0"].job_id == "7_0"
    assert cluster.batches == [["a-r1"]]


def test_one_run_of_a_batch_that_has_started_meanwhile_is_left_out(tmp_path, monkeypatch):
    cluster = Arrays()
    submit(repeats(3, "a"), cluster, tmp_path)
    for name in ("a-r0", "a-r1", "a-r2"):
        journal.entry(run_of(tmp_path, name), 0).path("receipt").unlink()

    def claimed_meanwhile(recorded: object) -> None:
        process = {"host": "elsewhere", "boot": "", "pid": 1, "start_ticks": 1}
        journal.claim(run_of(tmp_path, "a-r1"), 0, process=process, job_id=None, code_hash=CODE)

    monkeypatch.setattr(cluster, "profile", claimed_meanwhile)
    assert kinds(submit(repeats(3, "a"), cluster, tmp_path)) == ["submit", "in_progress", "submit"]
    assert cluster.batches[1:] == [["a-r0", "a-r2"]]
