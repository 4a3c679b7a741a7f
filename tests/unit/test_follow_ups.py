"""Runs that follow a run: of `job.on_done`, of `job.on_checkpoint`; cancelled and resumed with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.schedulers.interface import Batch, Job, SubmitError, SubmitQuota
from jobs.submission.checkpoint_runs import submit_missing
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, TINY, ask, ask_json, end, refused, states

N1 = RunDir(RUNS / "tiny/n1")
Batches = list[tuple[list[str], dict[str, str]]]


@pytest.fixture(autouse=True)
def batches(cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Runs of each batch, and the jobs that it needs. A config with follow-ups, and their scripts."""
    job = '{on_done: "convert.py {run_dir} {run}", on_checkpoint: "evaluate.py {checkpoint} {step}"}'
    Path("tiny.yaml").write_text(f"{TINY}job: {job}\n")
    for name in ("convert.py", "evaluate.py"):
        Path(name).touch()
    made: Batches = []
    take = cluster.submit

    def submit(batch: Batch) -> list[str]:
        made.append(([each.run.name for each in batch.submissions], dict(batch.needs)))
        return take(batch)

    monkeypatch.setattr(cluster, "submit", submit)
    cluster.has_room = SubmitQuota(array=9)
    return made


def save(*steps: int) -> None:
    for step in steps:
        (N1.checkpoints / f"step-{step:08d}").mkdir(parents=True)


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = read_json(RUNS / "tiny" / name / "run.json")["config"]
    return config


def test_on_done_is_a_run_that_needs_its_own_one(capsys, batches):
    ask(capsys, "sweep tiny.yaml --nodes 1 --set train.seed=0,1")
    assert batches == [
        (["n1-seed0", "n1-seed1"], {}),
        (["n1-seed0.done"], {"tiny/n1-seed0": "elsewhere:1"}),
        (["n1-seed1.done"], {"tiny/n1-seed1": "elsewhere:2"}),
    ]
    config = config_of("n1-seed1.done")
    assert config["command"] == ["convert.py", str((RUNS / "tiny/n1-seed1").absolute()), "n1-seed1"]
    assert (config["resources"]["nodes"], config["resources"]["gpus_per_node"]) == (1, 1)
    assert (config["job"]["time_limit_min"], config["job"]["on_done"]) == (60.0, [])
    keys = {read_json(path)["config_key"] for path in RUNS.glob("tiny/*/run.json")}
    assert len(keys) == 4


def test_the_same_command_submits_a_follow_up_that_is_missing(capsys, cluster, batches, monkeypatch):
    """The submitter may be killed between the run and its follow-up."""
    take = cluster.submit

    def refuse(batch: Batch) -> list[str]:
        if batch.submissions[0].run.name.endswith(".done"):
            raise SubmitError("no")
        return take(batch)

    monkeypatch.setattr(cluster, "submit", refuse)
    ask(capsys, "run tiny.yaml", code=1)
    assert states() == {"n1": "queued"}
    monkeypatch.setattr(cluster, "submit", take)
    for _ in range(2):
        ask(capsys, "run tiny.yaml")
    assert batches == [(["n1"], {}), (["n1.done"], {"tiny/n1": "elsewhere:1"})]


def test_repeats_that_are_added_have_follow_ups(capsys, cluster):
    ask(capsys, "sweep tiny.yaml --nodes 1 2 --repeats auto:2%:4")
    repeats = [f"n{nodes}-r{repeat}" for repeat in range(3) for nodes in (1, 2)]
    assert sorted(states()) == sorted([*repeats, *(f"{name}.done" for name in repeats)])


@pytest.mark.parametrize(
    ("cause", "action"), [("finished", "submit"), ("refused", "blocked"), ("crashed", "submit")]
)
def test_a_follow_up_starts_again_with_its_run_or_once_it_is_done(capsys, cluster, batches, cause, action):
    ask(capsys, "run tiny.yaml")
    end(N1, cause)
    journal.revoke(RunDir(RUNS / "tiny/n1.done"), 0, "launch_failed", "it needs tiny/n1, which is not done")
    batches.clear()
    code = 1 if action == "blocked" else 0
    told = ask_json(capsys, "run tiny.yaml", code)["actions"]
    assert {each["run"]: each["action"] for each in told}["n1.done"] == action
    needs = {"finished": "", "crashed": "elsewhere:3"}
    assert batches[-1:] == ([(["n1.done"], {"tiny/n1": needs[cause]})] if cause in needs else [])


def test_follow_ups_are_resumed_and_cancelled_with_their_run(capsys, cluster, batches):
    cluster.name = "slurm"
    ask(capsys, "run tiny.yaml")
    end(N1, "crashed")
    cluster.job = Job("ended", "its job was cancelled", "cancelled")
    batches.clear()
    ask(capsys, "resume tiny/n1")
    assert batches == [(["n1"], {}), (["n1.done"], {"tiny/n1": "elsewhere:3"})]
    cluster.job = Job("pending")
    ask(capsys, "cancel tiny/n1")
    assert states() == {"n1": "failed", "n1.done": "failed"}
    assert cluster.cancelled == ["elsewhere:3", "elsewhere:4"]


def test_a_follow_up_is_known_by_its_record_not_by_its_name(capsys, cluster, batches):
    cluster.name = "slurm"
    for seed, name in enumerate(("n1", "n1.done")):
        ask(capsys, f"run tiny.yaml --set job.on_done=[] train.seed={seed} --run-name {name}")
    ask(capsys, "cancel tiny/n1")
    assert states() == {"n1": "failed", "n1.done": "queued"}
    end(RunDir(RUNS / "tiny/n1.done"), "crashed")
    batches.clear()
    ask(capsys, "resume tiny/n1.done")
    assert batches == [(["n1.done"], {})]


@pytest.mark.parametrize(("cause", "needs"), [("crashed", None), ("finished", ""), (None, "elsewhere:1")])
def test_a_follow_up_is_not_resumed_without_its_failed_run(capsys, cluster, batches, cause, needs):
    cluster.name = "slurm"
    ask(capsys, "run tiny.yaml")
    if cause:
        end(N1, cause)
    end(RunDir(RUNS / "tiny/n1.done"), "crashed")
    batches.clear()
    (told,) = ask_json(capsys, "resume tiny/n1.done", 1 if needs is None else 0)["actions"]
    assert told["action"] == ("blocked" if needs is None else "retry")
    assert batches == ([] if needs is None else [(["n1.done"], {"tiny/n1": needs})])
    if needs is None:
        assert told["reason"] == "n1 is failed: resume tiny/n1, which this run follows"


def test_a_run_that_begins_anew_has_its_checkpoints_evaluated_again(capsys, cluster, batches):
    cluster.name = "slurm"
    ask(capsys, "run tiny.yaml")
    save(5)
    submit_missing(N1, cluster)
    end(N1, "crashed")
    cluster.job = Job("ended", "its job was cancelled", "cancelled")
    ask(capsys, "resume tiny/n1 --from-scratch")
    save(5)
    batches.clear()
    for _ in range(2):
        submit_missing(N1, cluster)
    assert batches == [(["n1.step-00000005-2"], {})]


def test_each_checkpoint_is_submitted_once(capsys, cluster, batches):
    ask(capsys, "run tiny.yaml")
    batches.clear()
    save(5, 10)
    run = RunDir(N1.path.absolute())
    submit_missing(run, cluster)
    save(15)
    for _ in range(2):
        submit_missing(run, cluster)
    assert batches == [(["n1.step-00000005", "n1.step-00000010"], {}), (["n1.step-00000015"], {})]
    path = str(run.checkpoints / "step-00000015")
    assert config_of("n1.step-00000015")["command"] == ["evaluate.py", path, "15"]


def test_a_submission_of_a_checkpoint_that_was_interrupted_is_found(capsys, cluster, batches):
    ask(capsys, "run tiny.yaml")
    save(5)
    submit_missing(N1, cluster)
    entry = journal.entry(RunDir(RUNS / "tiny/n1.step-00000005"), 0)
    entry.path("receipt").unlink()
    cluster.found = "elsewhere:3"
    batches.clear()
    submit_missing(N1, cluster)
    assert batches == []
    assert (entry.read("receipt") or {})["job_id"] == "elsewhere:3"


@pytest.mark.parametrize("cancelled", [True, False])
def test_nothing_is_submitted_for_a_run_that_was_cancelled(capsys, cluster, batches, cancelled):
    ask(capsys, "run tiny.yaml")
    save(5)
    batches.clear()
    if cancelled:
        journal.write_cancel(N1, 0, "me", "here")
    submit_missing(N1, cluster)
    assert len(batches) == (not cancelled)


def test_a_refused_checkpoint_is_tried_again(capsys, cluster, batches, monkeypatch):
    ask(capsys, "run tiny.yaml")
    save(5)
    take = cluster.submit

    def refuse(batch: Batch) -> list[str]:
        raise SubmitError("no")

    monkeypatch.setattr(cluster, "submit", refuse)
    with pytest.raises(SubmitError, match="no"):
        submit_missing(N1, cluster)
    assert not (RUNS / "tiny/n1.step-00000005").exists()
    monkeypatch.setattr(cluster, "submit", take)
    submit_missing(N1, cluster)
    assert batches[-1] == (["n1.step-00000005"], {})


def test_a_follow_up_has_the_site_profile_of_its_run(capsys, cluster, monkeypatch):
    ask(capsys, "run tiny.yaml")
    save(5)
    write_json(N1.run_json, read_json(N1.run_json) | {"profile": {"name": "site"}})
    asked: list[Any] = []
    monkeypatch.setattr(cluster, "profile", asked.append)
    submit_missing(N1, cluster)
    assert asked == [{"name": "site"}]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("on_done: convert.sh", "job.on_done: command: 'convert.sh' is neither a script"),
        ("on_done: 'convert.py {step}'", "job.on_done: {step} is none of {run}, {run_dir}, {checkpoint_dir}"),
        ("on_checkpoint: 'evaluate.py {chekpoint}'", "job.on_checkpoint: {chekpoint} is none of {run}, "),
        ("on_done: missing.py", "command: no file 'missing.py' in "),
        ("on_checkpoint: missing.py", "command: no file 'missing.py' in "),
    ],
)
def test_bad_follow_ups_are_refused(capsys, cluster, config, message):
    Path("tiny.yaml").write_text(f"{TINY}job:\n  {config}\n")
    error = refused(capsys, "run tiny.yaml --name new")
    assert message in error
    assert error.count("\n") == 1
    assert not (RUNS / "new").exists()


def test_a_script_has_no_checkpoints_that_could_be_known(capsys, cluster):
    error = refused(capsys, "run --set job.on_checkpoint=evaluate.py -- convert.py")
    assert "job.on_checkpoint has no effect on a command" in error
    ask(capsys, "run --set job.on_done=evaluate.py -- convert.py")
    assert states() == {"n1": "queued", "n1.done": "queued"}
