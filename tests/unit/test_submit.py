"""Batches of runs: announced together, submitted together, as many as there is room for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from disttrain.records.json_files import write_text
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
from jobs.schedulers.slurm.profile import Profile
from jobs.submission.decide import plan_actions
from jobs.submission.submit import carry_out
from tests.support.jobs import CODE, FakeScheduler, repeats, states, submit, sweep_plan


class Arrays(FakeScheduler):
    """Takes up to three runs at once."""

    def __init__(self) -> None:
        super().__init__()
        self.has_room = SubmitQuota(array=3)


def test_runs_of_one_shape_are_a_batch_whatever_their_config(tmp_path: Path) -> None:
    cluster = Arrays()
    plan = repeats(2, "a", "b")
    wide = repeats(1, "wide", nodes=2)
    actions = submit(
        dataclasses.replace(plan, runs=(*plan.runs[:1], *wide.runs, *plan.runs[1:])), cluster, tmp_path
    )
    assert cluster.batches == [["a-r0", "b-r0", "a-r1"], ["wide-r0"], ["b-r1"]]
    assert [action.name for action in actions] == ["a-r0", "wide-r0", "b-r0", "a-r1", "b-r1"]
    for action in actions:
        receipt = journal.entry(RunDir(tmp_path / "demo" / action.name), 0).read("receipt")
        assert receipt is not None
        assert receipt["job_id"] == action.job_id
    assert len({action.job_id for action in actions}) == 5


def test_without_arrays_the_order_stays(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(repeats(2, "a", "b"), cluster, tmp_path)
    assert cluster.batches == [["a-r0"], ["b-r0"], ["a-r1"], ["b-r1"]]


def test_runs_of_another_profile_are_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Arrays()
    names = iter(["one", "another"])
    monkeypatch.setattr(cluster, "profile", lambda recorded: Profile(name=next(names)))
    submit(repeats(2, "a"), cluster, tmp_path / "profiles")
    assert cluster.batches == [["a-r0"], ["a-r1"]]


def test_all_are_announced_before_any_is_submitted(tmp_path: Path) -> None:
    cluster = Arrays()

    def look(batch: Batch) -> list[str]:
        submissions = batch.submissions
        intents = [journal.entry(each.run, each.number).read("intent") or {} for each in submissions]
        assert [intent["index"] for intent in intents] == [0, 1, 2]
        assert {intent["handle"] for intent in intents} == {submission_tag(batch.submissions[0].run, 0)}
        assert not any(journal.entry(each.run, each.number).read("receipt") for each in submissions)
        return ["1_0", "1_1", "1_2"]

    cluster.submit = look  # type: ignore[method-assign]
    assert [action.job_id for action in submit(repeats(3, "a"), cluster, tmp_path)] == ["1_0", "1_1", "1_2"]


def test_the_name_of_the_cluster_is_on_record(tmp_path: Path) -> None:
    """Clusters that share a file system give the same job ids to different jobs."""
    cluster = FakeScheduler()
    cluster.is_cluster = "here"
    submit(sweep_plan("a"), cluster, tmp_path)
    intent = journal.entry(RunDir(tmp_path / "demo" / "a"), 0).read("intent")
    assert intent is not None
    assert intent["cluster_name"] == "here"


def test_a_handle_is_of_one_folder_and_one_submission(tmp_path: Path) -> None:
    runs = [RunDir(tmp_path / root / "demo" / "a") for root in ("runs", "elsewhere")]
    assert len({submission_tag(run, number) for run in runs for number in (0, 1)}) == 4


def test_what_a_batch_is_called(tmp_path: Path) -> None:
    submissions = [Submission(RunDir(tmp_path / "demo" / f"n2-r{number}"), 0, "") for number in (3, 4)]
    assert Batch(submissions[:1], {}, None).name == "n2-r3"
    assert Batch(submissions, {}, None).name == "n2"
    other = Submission(RunDir(tmp_path / "demo" / "n2-lr1-r3"), 0, "")
    assert Batch([*submissions, other], {}, None).name == "demo"


def test_what_there_is_no_room_for_is_left_and_nothing_announced(tmp_path: Path) -> None:
    cluster = Arrays()
    cluster.has_room = SubmitQuota(array=3, jobs=4, limit="the limit of 9 jobs (MaxSubmitJobs of account a)")
    actions = submit(repeats(3, "a", "b"), cluster, tmp_path)
    assert cluster.batches == [["a-r0", "b-r0", "a-r1"], ["b-r1"]]
    left = [action for action in actions if action.kind == "deferred"]
    assert [action.name for action in left] == ["a-r2", "b-r2"]
    assert left[0].reason == "the limit of 9 jobs (MaxSubmitJobs of account a) is reached"
    assert [states(tmp_path)[name].state for name in ("a-r2", "b-r2")] == ["planned", "planned"]
    assert journal.entries(RunDir(tmp_path / "demo" / "b-r2")) == []
    cluster.has_room = SubmitQuota(array=3)
    submit(repeats(3, "a", "b"), cluster, tmp_path)
    assert cluster.batches[2:] == [["a-r2", "b-r2"]], "the same command submits them later"


def test_a_limit_that_only_shows_in_a_refusal(tmp_path: Path) -> None:
    cluster = Arrays()
    take, room = cluster.submit, 2

    def refuse(batch: Batch) -> list[str]:
        if len(cluster.submitted) + len(batch.submissions) > room:
            raise LimitReached("the limit of jobs (AssocGrpSubmitJobsLimit)")
        return take(batch)

    cluster.submit = refuse  # type: ignore[method-assign]
    actions = submit(repeats(3, "a"), cluster, tmp_path)
    assert [(action.kind, action.name) for action in actions] == [
        ("submit", "a-r0"),
        ("submit", "a-r1"),
        ("deferred", "a-r2"),
    ]
    assert "AssocGrpSubmitJobsLimit" in actions[2].reason
    assert [state.state for state in states(tmp_path).values()] == ["queued", "queued", "planned"]


@pytest.mark.parametrize("fit", range(8))
def test_below_an_unknown_limit_as_many_runs_as_fit_are_submitted_and_none_twice(
    fit: int, tmp_path: Path
) -> None:
    cluster = Arrays()
    cluster.has_room = SubmitQuota(array=7)
    accepted: list[str] = []

    def limited(batch: Batch) -> list[str]:
        if len(accepted) + len(batch.submissions) > fit:
            raise LimitReached("the limit of jobs")
        accepted.extend(each.run.name for each in batch.submissions)
        return [f"{batch.submissions[0].tag}_{index}" for index in range(len(batch.submissions))]

    cluster.submit = limited  # type: ignore[method-assign]
    actions = submit(repeats(7, "a"), cluster, tmp_path)
    assert accepted == [f"a-r{number}" for number in range(fit)]
    assert [action.kind for action in actions] == ["submit"] * fit + ["deferred"] * (7 - fit)
    found = states(tmp_path)
    assert [found[f"a-r{number}"].state for number in range(7)] == ["queued"] * fit + ["planned"] * (7 - fit)


def test_a_job_that_journals_itself_queries_no_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeScheduler()
    monkeypatch.setattr(cluster, "quota", lambda: pytest.fail("it submits nothing"))
    (action,) = carry_out(plan_actions(sweep_plan("a"), [], CODE), cluster, tmp_path, current_job="7")
    assert (action.job_id, cluster.submitted) == ("7", [])


def refuse(batch: Batch) -> list[str]:
    raise SubmitError("no such partition")


def test_a_refusal_leaves_no_folder_of_a_new_run(tmp_path: Path) -> None:
    cluster = Arrays()
    own_file = tmp_path / "demo" / "a-r1" / "notes.txt"
    write_text(own_file, "mine")
    cluster.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(SubmitError):
        submit(repeats(3, "a"), cluster, tmp_path)
    assert states(tmp_path) == {}
    files = [path for path in (tmp_path / "demo").rglob("*") if path.is_file()]
    assert [path for path in files if path.name != ".lock"] == [own_file]


def test_a_refusal_keeps_runs_that_were_there_and_their_reason(tmp_path: Path) -> None:
    cluster = Arrays()
    cluster.has_room = SubmitQuota(jobs=1, limit="the limit of jobs")
    submit(repeats(3, "a"), cluster, tmp_path)  # the other two are deferred
    cluster.has_room = SubmitQuota(array=9)
    cluster.submit = refuse  # type: ignore[method-assign]
    with pytest.raises(SubmitError):
        submit(repeats(4, "a"), cluster, tmp_path)
    found = {name: (state.state, state.message) for name, state in states(tmp_path).items()}
    refused = ("planned", "no such partition")
    assert found == {"a-r0": ("queued", None), "a-r1": refused, "a-r2": refused}


def limit_reached(batch: Batch) -> list[str]:
    raise LimitReached("the limit of jobs")


@pytest.mark.parametrize("answer", [refuse, limit_reached])
def test_a_refused_start_from_scratch_keeps_the_checkpoints(
    answer: Callable[[Batch], list[str]], tmp_path: Path
) -> None:
    cluster = Arrays()
    runs = [RunDir(tmp_path / "demo" / f"a-r{number}") for number in range(2)]
    plan = repeats(2, "a")
    cluster.has_room = SubmitQuota(jobs=0, limit="the limit of jobs")
    submit(plan, cluster, tmp_path)
    cluster.has_room = SubmitQuota(array=3)
    for run in runs:
        (run.checkpoints / "step-00000005").mkdir(parents=True)
    cluster.submit = answer  # type: ignore[method-assign]
    actions = plan_actions(plan, list(states(tmp_path).values()), CODE, from_scratch=True)
    kinds = {action.kind for action in carry_out(actions, cluster, tmp_path)}
    assert kinds == {"blocked" if answer is refuse else "deferred"}
    for run in runs:
        assert [path.name for path in run.path.glob("checkpoints*")] == ["checkpoints"]
        assert checkpoint_steps(run.checkpoints) == [5]


def test_a_cluster_that_fell_silent_is_asked_again_and_not_told_again(tmp_path: Path) -> None:
    cluster = Arrays()
    take = cluster.submit

    def fall_silent(batch: Batch) -> list[str]:
        raise Unreachable("socket timed out")

    cluster.submit = cluster.find = fall_silent  # type: ignore[method-assign, assignment]
    with pytest.raises(Unreachable):
        submit(repeats(2, "a"), cluster, tmp_path)
    assert [state.state for state in states(tmp_path).values()] == ["submitting"] * 2
    actions = submit(repeats(2, "a"), cluster, tmp_path)
    assert [action.kind for action in actions] == ["in_progress", "in_progress"]
    assert "socket timed out" in actions[0].reason
    cluster.find = lambda submissions: ["7_0", None][: len(submissions)]  # type: ignore[method-assign]
    cluster.submit = take  # type: ignore[method-assign]
    actions = submit(repeats(2, "a"), cluster, tmp_path)
    assert [action.kind for action in actions] == ["in_progress", "submit"]
    assert states(tmp_path)["a-r0"].job_id == "7_0"
    assert cluster.batches == [["a-r1"]]


def test_one_run_of_a_batch_that_has_started_after_all_is_left_out(tmp_path: Path) -> None:
    cluster = Arrays()
    submit(repeats(3, "a"), cluster, tmp_path)
    run = RunDir(tmp_path / "demo" / "a-r1")
    for name in ("a-r0", "a-r1", "a-r2"):
        journal.entry(RunDir(tmp_path / "demo" / name), 0).path("receipt").unlink()

    def claimed_meanwhile(recorded: object) -> None:
        process = {"host": "elsewhere", "boot": "", "pid": 1, "start_ticks": 1}
        journal.claim(run, 0, process=process, job_id=None, code_hash=CODE)

    cluster.profile = claimed_meanwhile  # type: ignore[method-assign]
    actions = submit(repeats(3, "a"), cluster, tmp_path)
    assert [action.kind for action in actions] == ["submit", "in_progress", "submit"]
    assert cluster.batches[1:] == [["a-r0", "a-r2"]]


def test_one_run_alone_has_no_index(tmp_path: Path) -> None:
    submit(sweep_plan("a"), Arrays(), tmp_path)
    intent = journal.entry(RunDir(tmp_path / "demo" / "a"), 0).read("intent")
    assert intent is not None
    assert intent["index"] is None
