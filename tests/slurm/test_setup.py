"""The set-up of jobs on a real Slurm: it takes time, it fails in several ways, and it runs on each node."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import submit as command_line
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.gpu_hours import usage_of_runs
from jobs.status.refresh import refresh_all
from jobs.status.run_state import RunState, read_runs
from sweeps.expand import SweepPlan
from tests.support.jobs import repeats, submit, sweep_plan, wait_until
from tests.support.minicluster import MiniCluster


def send(plan: SweepPlan, root: Path, profile: str) -> None:
    """Submit runs with a site profile of these lines, as a sweep of their own: their configs are the same."""
    path = root.parent / f"{plan.runs[0].name}.yaml"
    path.write_text(profile)
    sweep = dataclasses.replace(plan, name=f"sweep-{path.stem}")
    actions = submit(sweep, SlurmScheduler(ProfileSelection(str(path))), root)
    assert {action.kind for action in actions} == {"submit"}


def asked(root: Path) -> dict[str, RunState]:
    return {state.name: state for state in refresh_all(read_runs(root))}


def printed(root: Path, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    capsys.readouterr()
    assert command_line.main([*command, "--runs", str(root)]) == 0
    return capsys.readouterr().out


def test_jobs_that_die_before_their_agents_start(
    root: Path, on_slurm: MiniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    go = root.parent / "go"
    wait = f"echo waiting; while [ ! -e {go} ]; do sleep 0.1; done; sleep 1.1"  # Slurm counts whole seconds
    send(repeats(2, "array"), root, f"setup: ['{wait}', 'ls /nonexistent || exit']")
    send(sweep_plan("module"), root, "modules: [no-such-module/9.9]")
    send(sweep_plan("python"), root, "python: /no/such/python")

    wait_until(lambda: {asked(root)[f"array-r{n}"].state for n in (0, 1)} == {"starting"})
    wait_until(lambda: command_line.main(["logs", "array-r1", "--runs", str(root)]) == 0)  # the log is there
    wait_until(lambda: printed(root, capsys, "logs", "array-r1") == "waiting\n")
    go.touch()
    wait_until(lambda: not any(state.active for state in asked(root).values()))
    states = asked(root)
    nonexistent = "ls: cannot access '/nonexistent': No such file or directory"
    reasons = {
        "array-r0": nonexistent,
        "array-r1": nonexistent,
        "module": "module",
        "python": "/no/such/python: not found",
    }
    for name, reason in reasons.items():
        state = states[name]
        assert (state.state, state.cause, state.retryable) == ("failed", "launch_failed", True), state
        assert reason in (state.message or "")
        assert reason in printed(root, capsys, "logs", name)
        assert f"{state.job_id}.log" in printed(root, capsys, "show", name)
    wait_until(lambda: len(usage_of_runs([state.run for state in states.values()])) == len(states))
    used = usage_of_runs([state.run for state in states.values()])
    assert {each.attempts for each in used.values()} == {0}
    assert used[states["array-r0"].run.path].hours > 0


@pytest.mark.slow
def test_a_set_up_of_each_node_that_fails_on_one(root: Path, on_slurm: MiniCluster) -> None:
    lines = ["export FROM=$SLURM_NODEID", "[ $SLURM_NODEID = 0 ] || { echo no disk >&2; exit 3; }"]
    send(sweep_plan("node", nodes=2, mode="hang"), root, f"node_setup: {json.dumps(lines)}")
    run = RunDir(root / "sweep-node" / "node")
    wait_until(lambda: run.failed.exists())
    record = read_json(run.attempt(0).record)
    host = record["nodes"][1]
    assert record["cause"] == "launch_failed"
    assert record["message"].startswith(f"node 1: cannot start: node_setup exited with code 3 on {host};")
    assert record["failed_nodes"] == [host]
