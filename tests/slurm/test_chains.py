"""Chains on a real Slurm: runs that wait for others, and runs that a run submits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import submit as command_line
from disttrain.records.run_directory import RunDir, checkpoint_steps
from jobs.core import journal
from jobs.status.refresh import refresh_all
from jobs.status.run_state import RunState, read_runs, read_state
from tests.support.jobs import starts, status, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import Job, config


def sweep(name: str, ways: str, *flags: str) -> dict[str, RunState]:
    """Submit a sweep with a run for each way of the stand-in; its runs by their way."""
    command = ["sweep", "small.yaml", "--nodes", "1", "--cluster", "slurm", "--no-report", "--name", name]
    values = ["--set", f"job.env.STANDIN={ways}", "resources.device=cpu"]
    assert command_line.main([*command, *values, *flags]) == 0
    return {state.name.partition("STANDIN")[2] or ways: state for state in read_runs(Path("runs"), name)}


@pytest.mark.slow
def test_runs_start_after_those_that_they_need(root: Path, on_slurm: MiniCluster) -> None:
    """A job that is requeued has not ended. Slurm ends one that can never start."""
    first = sweep("first", "leave-once")["leave-once"]
    after = sweep("second", "complete", "--after", "first")["complete"]
    failing = sweep("third", "complete,fail", "--after", "n1-STANDINfail")
    any_end = sweep("fourth", "complete", "--after-any", "third/n1-STANDINfail")["complete"]
    wait_until(lambda: starts(first.run))
    on_slurm.ask("scontrol", "requeue", str(first.job_id))
    wait_until(lambda: len(starts(first.run)) == 2)
    assert (status(after.job_id), starts(after.run)) == ("pending", [])
    (first.run.path / "go").touch()

    def ended() -> dict[str, RunState]:
        states = {state.label: state for state in refresh_all(read_runs(root))}
        return {} if any(state.active for state in states.values()) else states

    wait_until(ended)
    told = ended()
    assert {name: state.state for name, state in told.items()} == {
        "first/n1": "done",
        "second/n1": "done",
        "third/n1-STANDINcomplete": "planned",
        "third/n1-STANDINfail": "failed",
        "fourth/n1": "done",
    }
    message = "it needs third/n1-STANDINfail, which is not done (launch_failed)"
    assert told["third/n1-STANDINcomplete"].message == message
    assert (starts(failing["complete"].run), len(starts(any_end.run))) == ([], 1)


EVALUATE = """\
import os, sys, time

assert os.path.isdir(sys.argv[1]), sys.argv
with open(os.environ["LINES"], "a") as lines:
    print(*sys.argv[2:], file=lines)
while os.path.exists(os.environ["LINES"] + ".hold"):
    time.sleep(0.1)
"""


def submit_followed(cluster: MiniCluster, folder: Path, steps: int) -> tuple[Job, Path]:
    """A run with a program for each checkpoint and for its end, which write lines to a file."""
    lines = folder / "lines"
    (folder / "evaluate.py").write_text(EVALUATE)
    made = config(ranks=1, env={"LINES": str(lines)}, on_checkpoint="evaluate.py {checkpoint} {run} {step}")
    made["job"]["on_done"] = ["evaluate.py", "{run_dir}", "done", "it's {run}"]
    made["train"]["steps"] = steps
    made["checkpoint"]["keep"] = 99
    (folder / "job.yaml").write_text(yaml.safe_dump(made))
    cluster.submit("run", "job.yaml", "--cluster", "slurm", "--no-report", cwd=folder)
    return Job(cluster, RunDir(folder / "runs" / "job" / "n1")), lines


@pytest.mark.slow
def test_each_checkpoint_is_evaluated_once_over_a_requeue(slurm: MiniCluster, tmp_path: Path) -> None:
    job, lines = submit_followed(slurm, tmp_path, steps=60)
    done = RunDir(job.run.path.with_name(f"{job.run.name}.done"))
    second = RunDir(job.run.path.with_name(f"{job.run.name}.step-00000010"))
    wait_until(lambda: journal.entry(second, 0).read("receipt"))
    assert (job.state.state, read_state(done).state) == ("running", "queued")
    slurm.ask("scontrol", "requeue", job.id)

    def runs() -> list[RunState]:
        return read_runs(tmp_path / "runs")

    wait_until(lambda: done.done.exists() and not any(state.active for state in runs()))
    assert len(job.attempts()) == 2
    steps = sorted(checkpoint_steps(job.run.checkpoints))
    assert steps[-1] == 60
    names = [f"{job.run.name}.step-{step:08d}" for step in steps]
    told = {state.name: state for state in runs()}
    assert {name: state.state for name, state in told.items()} == dict.fromkeys(
        [job.run.name, done.name, *names], "done"
    )
    assert sorted(lines.read_text().splitlines()) == sorted(
        [f"done it's {job.run.name}", *(f"{job.run.name} {step}" for step in steps)]
    )
    assert [len(journal.entries(told[name].run)) for name in names] == [1] * len(steps)
    again = slurm.submit("resume", "job", cwd=tmp_path)
    assert "submitted" not in again, again


@pytest.mark.slow
def test_follow_ups_are_cancelled_with_their_run(slurm: MiniCluster, tmp_path: Path) -> None:
    (tmp_path / "lines.hold").touch()
    job, lines = submit_followed(slurm, tmp_path, steps=300)
    wait_until(lines.exists)
    slurm.submit("cancel", f"job/{job.run.name}", cwd=tmp_path)
    told = json.loads(slurm.submit("status", "--json", cwd=tmp_path))["runs"]
    states = {run["run"].removeprefix(job.run.name): run["state"] for run in told}
    assert states.pop(".done") in ("cancelled", "planned"), "Slurm may end it first"
    assert len(states) > 1
    assert set(states.values()) == {"cancelled"}
