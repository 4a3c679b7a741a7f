"""`--after` and `--after-any`: the jobs that runs wait for, and what is refused as it would wait for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.attempt import open_attempt
from jobs.schedulers.interface import Batch, Job
from jobs.status.run_state import read_state
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json, end, refused, states


@pytest.fixture
def waits(
    cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, Mapping[str, str], list[str]]]:
    """Of each batch: its first run, the jobs that must end well, and those that must end."""
    batches: list[tuple[str, Mapping[str, str], list[str]]] = []
    take = cluster.submit

    def submit(batch: Batch) -> list[str]:
        batches.append((batch.submissions[0].run.name, dict(batch.needs), list(batch.after)))
        return take(batch)

    monkeypatch.setattr(cluster, "submit", submit)
    monkeypatch.setattr(cluster, "one_machine", False)
    return batches


def intent(run: RunDir) -> dict[str, Any]:
    return journal.entry(run, 0).read("intent") or {}


def test_runs_wait_for_named_runs_and_whole_sweeps(capsys, waits):
    ask(capsys, "sweep tiny.yaml --nodes 1 2 --name first")
    end(RunDir(RUNS / "first/n2"), "finished")
    ask(capsys, "run tiny.yaml --name other --set train.steps=7")
    waits.clear()
    ask(capsys, "run tiny.yaml --name evaluate --after first --after-any other/n1-steps7")
    assert waits == [("n1", {"first/n1": "elsewhere:1"}, ["elsewhere:3"])], (
        "what is done need not be waited for"
    )
    assert intent(RunDir(RUNS / "evaluate/n1"))["needs"] == {"first/n1": "elsewhere:1"}
    assert intent(RunDir(RUNS / "first/n1")).keys().isdisjoint(["needs"])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--after n4",
            [("n4", {}, []), ("n1", {"tiny/n4": "elsewhere:1"}, []), ("n2", {"tiny/n4": "elsewhere:1"}, [])],
        ),
        ("--after-any tiny/n4", [("n4", {}, []), ("n1", {}, ["elsewhere:1"]), ("n2", {}, ["elsewhere:1"])]),
        (
            "--after n4 --serial",
            [
                ("n4", {}, []),
                ("n1", {"tiny/n4": "elsewhere:1"}, ["elsewhere:1"]),
                ("n2", {"tiny/n4": "elsewhere:1"}, ["elsewhere:2"]),
            ],
        ),
    ],
)
def test_a_run_that_the_command_submits_later_is_submitted_first(capsys, waits, flags, expected):
    ask(capsys, f"sweep tiny.yaml --nodes 1 2 4 {flags}")
    assert waits == expected


def test_resumed_runs_wait_for_another_one_of_them(capsys, waits):
    for name in ("n1", "n2"):
        make_run(RUNS, f"tiny/{name}", "failed")
    ask(capsys, "resume tiny --after n2")
    assert [(name, list(needs)) for name, needs, _ in waits] == [("n2", []), ("n1", ["tiny/n2"])]


def test_a_run_that_starts_in_the_meantime_is_needed(capsys, waits, monkeypatch):
    for name in ("n1", "n2"):
        make_run(RUNS, f"tiny/{name}", "failed")
    monkeypatch.setattr(journal, "revoke", lambda run, *_, **__: run.name == "n1")
    ask(capsys, "resume tiny --after n2")
    assert waits == [("n1", {"tiny/n2": ""}, [])]


def test_a_dry_run_shows_the_dependency(capsys, cluster):
    ask(capsys, "sweep tiny.yaml --nodes 1 --name first --cluster slurm")
    cluster.name = "slurm"
    script = ask_json(capsys, "sweep tiny.yaml --nodes 1 2 --after n2 --dry-run --cluster slurm")["batches"][
        1
    ]["script"]
    assert "#SBATCH --dependency=afterok:JOB_OF_n2\n" in script
    assert "#SBATCH --kill-on-invalid-dep=yes\n" in script


@pytest.mark.parametrize(
    ("state", "flags", "message"),
    [
        ("failed", "--after {run}", "--after: first/n1 is failed (crashed: "),
        ("cancelled", "--after first", "--after: first/n1 is cancelled (cancelled: "),
        ("planned", "--after {run}", "--after: first/n1 has no job to wait for"),
        ("planned", "--after-any {run}", "--after-any: first/n1 has no job to wait for"),
        ("done", "--after first/n3", "--after: no run 'n3' in runs/first"),
        ("done", "--after frist", "--after: no run or sweep 'frist' in runs; did you mean 'first'?"),
        ("done", "--after n1-steps7", "--after: n1-steps7 cannot wait for itself"),
        ("done", "--after tiny", "--after: no run or sweep 'tiny' in runs"),
    ],
)
def test_runs_that_would_never_start_are_refused(capsys, cluster, state, flags, message):
    make_run(RUNS, "first/n1", state)
    error = refused(capsys, f"run tiny.yaml --set train.steps=7 {flags.format(run='first/n1')}")
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (RUNS / "tiny").exists()
    assert cluster.submitted == []


def test_the_job_of_another_cluster_is_refused(capsys, cluster):
    ask(capsys, "run tiny.yaml --name first")
    cluster.is_cluster = "here"
    path = journal.entry(RunDir(RUNS / "first/n1"), 0).path("intent")
    write_json(path, read_json(path) | {"cluster_name": "there"})
    assert "is not one of this machine" in refused(capsys, "run tiny.yaml --after first")


@pytest.mark.parametrize("state", ["failed", "done", "cancelled"])
def test_a_failed_run_is_enough_for_after_any(capsys, waits, state):
    make_run(RUNS, "first/n1", state)
    ask(capsys, "run tiny.yaml --after-any first")
    assert waits == [("n1", {}, [])]


@pytest.mark.parametrize("cause", ["finished", "crashed", "stopped", None])
def test_a_start_looks_at_the_runs_that_it_needs(capsys, cluster, cause):
    """Also where the scheduler started it: the job of a stopped run ends well."""
    ask(capsys, "run tiny.yaml --name first")
    ask(capsys, "run tiny.yaml --after first")
    first, run = RunDir(RUNS / "first/n1"), RunDir(RUNS / "tiny/n1")
    if cause:
        end(first, cause)
    attempt = open_attempt(run, 0, cluster="local", job_id="elsewhere:2", nodes=["n"])
    assert (attempt is not None) == (cause == "finished")
    if cause != "finished":
        state = read_state(run)
        reason = f" ({cause})" if cause else ""
        assert (state.state, state.message) == ("planned", f"it needs first/n1, which is not done{reason}")


@pytest.mark.parametrize(
    ("cause", "expected"), [("crashed", "planned"), ("finished", "cancelled"), (None, "cancelled")]
)
def test_a_job_that_slurm_ended_as_it_could_never_start(capsys, cluster, cause, expected):
    """Slurm cancels it. While the other run is at work, somebody else did."""
    ask(capsys, "run tiny.yaml --name first")
    ask(capsys, "run tiny.yaml --after first")
    if cause:
        end(RunDir(RUNS / "first/n1"), cause)
    cluster.job = Job("ended", "its job was cancelled", "cancelled")
    told = ask_json(capsys, "status tiny")["runs"][0]
    assert told["state"] == expected
    assert (told["message"] == "it needs first/n1, which is not done (crashed)") == (expected == "planned")
    if cause == "crashed":
        cluster.job = Job("pending")
        ask(capsys, "run tiny.yaml")
        assert states()["n1"] == "queued"
