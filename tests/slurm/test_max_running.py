"""`--max-running` on a real Slurm: dependencies and throttled arrays, a requeue, and a second command."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit as command_line
from tests.support.jobs import (
    settled,
    starts,
    states,
    status,
    wait_until,
)
from tests.support.minicluster import MiniCluster

_SWEEP = ["sweep", "small.yaml", "--nodes", "1", "--cluster", "slurm", "--no-report"]


def sweep(axis: str, *flags: str) -> list[str]:
    """Submit a run for each value, which ends once it finds the file `go`; the job ids of all, in order."""
    values = ["--set", axis, "resources.device=cpu", "job.env.STANDIN=leave-once"]
    assert command_line.main([*_SWEEP, *values, *flags]) == 0
    return [str(state.job_id) for state in states(Path("runs")).values()]


def go(root: Path, *numbers: int) -> None:
    runs = [state.run for state in states(root).values()]
    for number in numbers:
        (runs[number].path / "go").touch()


@pytest.mark.slow
def test_no_more_jobs_run_than_allowed(root: Path, on_slurm: MiniCluster) -> None:
    sweep("resources.threads_per_rank=1,2,3", "--max-running", "2")  # no script is like another: no array
    # one more, while the others are active
    jobs = sweep("resources.threads_per_rank=1,2,3,4", "--max-running", "2")
    wait_until(lambda: [status(job) for job in jobs[:2]] == ["running"] * 2)
    runs = [state.run for state in states(root).values()]
    wait_until(lambda: all(starts(run) for run in runs[:2]))
    on_slurm.ask("scontrol", "requeue", jobs[0])
    wait_until(lambda: len(starts(runs[0])) == 2)  # no job took its place while it waited
    assert [len(starts(run)) for run in runs] == [2, 1, 0, 0]
    assert [status(job) for job in jobs[2:]] == ["pending"] * 2
    go(root, 0)
    wait_until(lambda: starts(runs[2]))
    assert [status(job) for job in jobs[1:]] == ["running", "running", "pending"]
    go(root, 1, 2, 3)
    assert {state.state for state in settled(root).values()} == {"done"}


def test_runs_of_one_shape_are_one_array_with_a_limit_of_its_own(root: Path, on_slurm: MiniCluster) -> None:
    jobs = sweep("train.seed=0,1", "--repeats", "2", "--serial")
    array = jobs[0].partition("_")[0]
    assert sorted(jobs) == [f"{array}_{number}" for number in range(4)]
    assert "ArrayTaskThrottle=1" in on_slurm.ask("scontrol", "show", "job", jobs[2])
    go(root, 0, 1, 2, 3)
    ended = settled(root)
    assert {state.state for state in ended.values()} == {"done"}
