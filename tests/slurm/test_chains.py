"""Chains on a real Slurm: runs that wait for others."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit as command_line
from jobs.status.refresh import refresh_all
from jobs.status.run_state import RunState, read_runs
from tests.support.jobs import starts, status, wait_until
from tests.support.minicluster import MiniCluster


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
