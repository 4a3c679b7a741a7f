"""The local cluster with real processes: order, limits, ends of every kind, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

import submit as submit_py
from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.records.attempt import AttemptRecord, Outcome
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.records.planned import EnvRecord
from disttrain.records.run_directory import RunDir
from jobs.core import hook, journal, secrets_file
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import read_runs, read_state
from jobs.submission import report_job
from jobs.submission.cancel import cancel_runs
from sweeps.expand import RunPlan, SweepPlan
from tests.support.jobs import (
    STANDIN,
    WITHIN_S,
    ended_afterwards,
    in_a_fork,
    settled,
    started_pids,
    starts,
    states,
    submit,
    sweep_plan,
    wait_for,
    wait_until,
)
from tests.support.lineage import read_steps

pytestmark = pytest.mark.multiprocess


TINY = """\
model: {kind: mlp}
data: {kind: digits}
train: {steps: 6, local_batch_size: 8}
telemetry: {warmup_steps: 2, sinks: []}
"""
EMULATED = """\
model: {kind: emulated, layers: 1, layer_mb: 0.01, forward_s: 0.01, backward_s: 0.01}
data: {kind: synthetic, shape: [8], classes: 2}
train: {steps: 6, local_batch_size: 8}
telemetry: {warmup_steps: 2, sinks: []}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path / "runs"


def hanging(root: Path, *names: str, nodes: int = 1, **job: float) -> list[RunDir]:
    """Submitted runs of which the first is at work, and will not end by itself."""
    submit(sweep_plan(*names, nodes=nodes, mode="hang", **job), LocalScheduler(), root)
    runs = [RunDir(root / "demo" / name) for name in names]
    wait_until(lambda: len(started_pids(runs[0])) == 2 * nodes)  # the launcher and its worker
    return runs


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_runs_go_one_at_a_time_in_the_order_of_submission(root: Path) -> None:
    names = ["d", "a", "c", "b"]
    actions = submit(sweep_plan(*names), LocalScheduler(), root)
    assert [action.name for action in actions] == names
    ended = settled(root)
    spans = [attempt_of(ended[name].run) for name in names]
    assert all(first.ended <= second.started for first, second in pairwise(spans))


def test_a_run_starts_only_after_the_run_that_it_needs_is_done(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)

    def sweep(name: str, *arguments: str) -> None:
        arguments = ("sweep", "tiny.yaml", "--cluster", "local", "--no-report", "--name", name, *arguments)
        assert submit_py.main(arguments) == 0

    ways = ("--set", "job.env.STANDIN=complete,fail")
    sweep("first", *ways, "--after-any", "n1-STANDINfail")
    sweep("second", "--after", "first")
    sweep("third", *ways, "--after", "n1-STANDINcomplete")
    ended = {state.label: state for state in (settled(root), read_runs(root))[1]}
    assert {label: state.state for label, state in ended.items()} == {
        "first/n1-STANDINcomplete": "done",
        "first/n1-STANDINfail": "failed",
        "second/n1": "planned",
        "third/n1-STANDINcomplete": "done",
        "third/n1-STANDINfail": "failed",
    }
    assert ended["second/n1"].message == "it needs first/n1-STANDINfail, which is not done (launch_failed)"
    assert starts(ended["second/n1"].run) == []
    started = [attempt_of(ended[f"first/n1-STANDIN{way}"].run).started for way in ("fail", "complete")]
    assert started == sorted(started)


@pytest.mark.slow
def test_a_run_is_followed_by_those_of_its_checkpoints_and_of_its_end(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DISTTRAIN_LAUNCHER")
    monkeypatch.chdir(tmp_path)
    follow = 'job: {on_checkpoint: "look.py {checkpoint}", on_done: "look.py {run_dir} DONE"}\n'
    Path("tiny.yaml").write_text(f"{EMULATED}checkpoint: {{every_steps: 3}}\n{follow}")
    Path("look.py").write_text("import os, sys\nassert os.path.exists(os.path.join(*sys.argv[1:]))\n")
    assert submit_py.main(["run", "tiny.yaml", "--cluster", "local", "--no-report"]) == 0
    names = ["n1", "n1.done", "n1.step-00000003", "n1.step-00000006"]
    wait_until(lambda: [state.name for state in read_runs(root)] == names)
    ended = settled(root)
    assert {name: (state.state, state.attempts) for name, state in ended.items()} == dict.fromkeys(
        names, ("done", 1)
    )
    first = [attempt_of(ended[name].run).started for name in names]
    assert first == sorted(first), "one at a time, in the order of submission"


def attempt_of(run: RunDir, number: int = 0) -> AttemptRecord:
    return AttemptRecord.model_validate(read_json(run.attempt(number).record))


def test_cancel_while_it_runs_and_while_it_waits(root: Path) -> None:
    running, waiting = hanging(root, "a", "b", nodes=2)
    wait_until(lambda: journal.entry(waiting, 0).path("holder").exists())
    holder = journal.entry(waiting, 0).read("holder")
    assert holder is not None
    hit, _ = cancel_runs(list(states(root).values()), LocalScheduler())
    assert {state.name: state.state for state in hit} == {"a": "running", "b": "queued"}
    ended = settled(root)
    assert {(state.state, state.cause, state.retryable) for state in ended.values()} == {
        ("failed", "cancelled", True)
    }
    assert Outcome.model_validate(read_json(running.failed)).cause == "cancelled"
    assert starts(waiting) == []
    pids = [*started_pids(running), attempt_of(running).pid, holder["process"]["pid"]]
    wait_until(lambda: not any(exists(pid) for pid in pids))


def test_the_time_limit_ends_everything(root: Path) -> None:
    submit(sweep_plan("a", mode="hang", time_limit_min=0.05), LocalScheduler(), root)
    ended = settled(root)["a"]
    assert (ended.state, ended.cause) == ("failed", "timeout")
    assert "job.time_limit_min=0.05" in str(ended.message)
    assert not any(exists(pid) for pid in started_pids(ended.run))  # however many there were by then


def test_a_killed_agent_is_lost_and_retried(root: Path) -> None:
    (run,) = hanging(root, "a", nodes=2)
    supervisor = attempt_of(run).pid
    agents = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    os.kill(agents[1], signal.SIGKILL)
    ended = settled(root)["a"]
    assert (ended.state, ended.cause, ended.retryable) == ("failed", "lost", True)
    assert "SIGKILL" in str(ended.message)
    assert not any(exists(pid) for pid in started_pids(run))
    again = submit(sweep_plan("a", nodes=2, mode="hang"), LocalScheduler(), root)
    assert [action.kind for action in again] == ["retry"]
    wait_until(lambda: (1, 0) in starts(run))


def test_a_killed_supervisor_takes_everything_with_it(root: Path) -> None:
    (run,) = hanging(root, "a")
    os.kill(attempt_of(run).pid, signal.SIGKILL)
    ended = settled(root)["a"]
    assert (ended.state, ended.retryable) == ("lost", True)
    wait_until(lambda: not any(exists(pid) for pid in started_pids(run)))


def test_a_failure_is_retried_as_the_next_attempt_until_max_attempts(root: Path) -> None:
    plan = sweep_plan("a", mode="fail", max_attempts=2, on_end="exit 1")
    kinds = []
    for _ in range(3):
        kinds += [action.kind for action in submit(plan, LocalScheduler(), root, code=code_of(root))]
        settled(root)
    assert kinds == ["submit", "retry", "blocked"]
    ended = states(root)["a"]
    assert (ended.state, ended.cause, ended.attempts) == ("failed", "launch_failed", 2)
    assert "it went wrong" in str(ended.message)
    assert starts(ended.run) == [(0, 0), (1, 0)]
    (call,) = hook.records_of(root / "demo").glob("*.json")  # two failures within ten minutes: one call
    wait_until(lambda: read_json(call)["exit_code"] == 1)


def code_of(root: Path) -> str:
    """The code that the runs so far were made with, which may change while this test runs."""
    return next((state.code_hash for state in read_runs(root) if state.code_hash), "none yet")


def test_a_failed_run_that_succeeds_at_last_is_done(root: Path) -> None:
    plan = sweep_plan("a", mode="fail-once")
    for _ in range(2):
        submit(plan, LocalScheduler(), root)
        settled(root)
    run = RunDir(root / "demo" / "a")
    assert read_state(run).state == "done"
    assert run.done.exists()
    assert not run.failed.exists()
    assert attempt_of(run, 0).cause == "launch_failed"


def test_it_outlives_ctrl_c(root: Path) -> None:
    """The submitter's whole process group is interrupted right after it has submitted."""

    def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a process of pytest-xdist ignores it
        submit(sweep_plan("a", "b"), LocalScheduler(), root)
        os.killpg(0, signal.SIGINT)

    pid = in_a_fork(interrupted)
    assert wait_for(pid) != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)  # no process of the jobs is in the group
    assert {state.state for state in settled(root).values()} == {"done"}


def test_the_environment_is_as_the_user_had_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("SLURM_NTASKS", "7")
    shown = root.parent / "environment"
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", f"sh -c 'env > {shown}; exec {STANDIN} \"$@\"' --")
    plan = sweep_plan("a", env={"STANDIN": "complete"}, secrets=["HF_TOKEN", "MY_TOKEN"])
    monkeypatch.setenv("MY_TOKEN", "hush")
    secrets_file.add(root / "demo", {"HF_TOKEN": "hush"})
    submit(plan, LocalScheduler(), root)
    run = settled(root)["a"].run
    seen = dict(line.partition("=")[::2] for line in shown.read_text().splitlines())
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"
    assert (seen["HF_TOKEN"], seen["MY_TOKEN"]) == ("hush", "hush")
    assert seen["GLOO_SOCKET_IFNAME"] == "lo"
    assert not {"RANK", "SLURM_NTASKS"} & set(seen)
    assert EnvRecord.model_validate(read_json(run.env_json)).variables["HF_TOKEN"].value == "***"
    assert not [path for path in run.path.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_goes_on_where_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISTTRAIN_LAUNCHER")
    marker = root / "demo" / "n2" / "asked"
    config = Config.model_validate(
        {
            # the third pass is that of step 2: one comes before the first step
            "model": {"kind": "tests.support.small_models:Asking", "marker": str(marker), "call": 3},
            "data": {"kind": "tests.support.small_models:source"},
            "train": {"steps": 5, "local_batch_size": 4, "global_batch_size": 8},
            "resources": {"nodes": 2, "device": "cpu"},
            "job": {"stop_check_s": 0},
        }
    )
    plan = RunPlan("n2", config, config_key(config), 0, {"resources.nodes": 2}, BatchPlan(4, 1, 2))
    sweep = SweepPlan("demo", {}, (plan,))
    submit(sweep, LocalScheduler(), root)
    stopped = settled(root)["n2"]
    assert (stopped.cause, stopped.message, stopped.retryable) == (
        "stopped",
        "saved and stopped at step 2 of 5",
        True,
    )
    submit(sweep, LocalScheduler(), root)
    ended = settled(root)["n2"]
    assert (ended.state, ended.attempts) == ("done", 2), ended.message
    metrics = Metrics.model_validate(read_json(ended.run.metrics))
    assert (metrics.resumed_step, metrics.steps) == (2, 5)
    steps = read_steps(ended.run, rank=1)
    assert {step: attempt for step, (attempt, _) in steps.items()} == {1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    deadline = read_json(ended.run.env_json)["variables"]["DISTTRAIN_DEADLINE"]
    assert float(deadline["value"]) > datetime.fromisoformat(attempt_of(ended.run, 1).started).timestamp()


def test_the_report_is_written_when_the_last_run_has_ended(root: Path, tmp_path: Path) -> None:
    Path(tmp_path / "tiny.yaml").write_text(TINY)
    command = [sys.executable, submit_py.__file__, "sweep", str(tmp_path / "tiny.yaml"), "--cluster", "local"]
    command += ["--nodes", "1", "--runs", str(root)]
    for count in ("1", "2"):
        subprocess.run([*command, "--repeats", count], check=True, timeout=WITHIN_S)
    folder = report_job.journal_of(root, "tiny")
    wait_until(lambda: journal.entries(folder)[-1].read("holder") is not None)
    page = root / "tiny" / "report" / "report.html"
    ended = settled(root)
    assert {state.state for state in ended.values()} == {"done"}
    wait_until(page.exists)
    assert len(read_json(page.with_name("report.json"))["excluded_runs"]) == 2, "runs of the stand-in"
    wait_until(lambda: not list((tmp_path / "queue").glob("*.ticket")))
    first, second = journal.entries(folder)
    assert "claim" in first.parts, "another one took its place"
    assert "claim" not in second.parts


@pytest.mark.slow
def test_repeats_are_added_after_the_runs_and_with_wait(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DISTTRAIN_LAUNCHER")
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(EMULATED)
    command = [sys.executable, submit_py.__file__, "sweep", "tiny.yaml", "--cluster", "local", "--repeats"]
    subprocess.run([*command, "auto:0.0001%:4"], check=True, timeout=WITHIN_S)
    page = root / "tiny" / "report" / "report.html"
    wait_until(page.exists)
    assert {name: state.attempts for name, state in states(root).items()} == {
        f"n1-r{repeat}": 1 for repeat in range(4)
    }
    assert [("claim" in each.parts) for each in journal.entries(report_job.journal_of(root, "tiny"))] == [
        True,
        False,
    ]
    assert "Repeats were added until ±0.0001 % or 4" in page.with_name("report.md").read_text()
    subprocess.run([*command, "auto:0.0001%:5", "--wait"], check=True, timeout=WITHIN_S)
    assert len(states(root)) == 5
