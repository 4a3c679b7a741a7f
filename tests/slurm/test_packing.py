"""Runs side by side in one job: their GPUs, ends of their own, a cancel of one, the requeue of the job."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.run_state import read_runs
from tests.support.jobs import STANDIN, settled, starts, states, status, submit, sweep_plan, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import RANK, Job, assert_the_same, config

SEEING = f"""\
#!/bin/sh
for word; do [ "$before" != --run-dir ] || echo "$CUDA_VISIBLE_DEVICES" >> "$word/gpus"; before=$word; done
exec {STANDIN} "$@"
"""


def test_each_run_has_its_gpu_and_its_own_end(
    root: Path, on_slurm: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = root.parent / "launcher"
    launcher.write_text(SEEING)
    launcher.chmod(0o755)
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(launcher))
    modes = {"done": "complete", "fails": "fail", "hangs": "hang", "stays": "leave-once"}
    packed = {"runs_per_node": 4}
    plans = [sweep_plan(name, mode=mode, resources=packed) for name, mode in modes.items()]
    plan = dataclasses.replace(plans[0], runs=tuple(plan.runs[0] for plan in plans))
    actions = submit(plan, SlurmScheduler(), root)
    job = str(actions[0].job_id).partition("/")[0]
    assert [action.job_id for action in actions] == [f"{job}/{place}" for place in range(4)]
    wait_until(lambda: {states(root)[name].state for name in ("done", "fails")} == {"done", "failed"})
    wait_until(lambda: all(starts(states(root)[name].run) for name in ("hangs", "stays")))
    assert {name: state.state for name, state in states(root).items()} == {
        "done": "done", "fails": "failed", "hangs": "running", "stays": "running",
    }  # fmt: skip
    seen = [(states(root)[name].run.path / "gpus").read_text() for name in modes]
    assert seen == ["0\n", "1\n", "2\n", "3\n"]
    on_slurm.submit("cancel", "demo/hangs", cwd=root.parent)
    assert states(root)["hangs"].displayed_state == "cancelled"
    assert "cancel` of" in str(states(root)["hangs"].message)
    assert (states(root)["stays"].state, status(f"{job}/0")) == ("running", "running")
    (states(root)["stays"].run.path / "go").touch()
    ended = settled(root)
    assert ended["stays"].state == "done"
    assert "it went wrong" in str(ended["fails"].message)
    assert {name: starts(state.run) for name, state in ended.items()} == {name: [(0, 0)] for name in modes}
    wait_until(lambda: status(f"{job}/0") == "ended")
    usage = json.loads(on_slurm.submit("status", "--long", "--json", cwd=root.parent))["usage"]
    assert {each["source"] for each in usage} == {"timestamps"}


def kill_rank(job: Job, attempt: int) -> None:
    """Kill one of the ranks of a run."""
    started = {
        pid: words[words.index("-m") + 1]
        for pid, words in job.processes(job.nodes(attempt)[0]).items()
        if "-m" in words
    }
    os.kill(min(pid for pid, module in started.items() if module == RANK), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)  # three starts
def test_a_killed_run_and_a_pre_empted_job_go_on(
    slurm: MiniCluster, tmp_path: Path, reference: RunDir
) -> None:
    made = config() | {"resources": {"nodes": 1, "gpus_per_node": 2, "runs_per_node": 2}}
    made["model"]["hurry"] = str(tmp_path / "hurry")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(made | {"sweep": {"repeats": 2}}))
    slurm.submit("sweep", "job.yaml", "--cluster", "slurm", "--no-report", cwd=tmp_path)
    one, two = (Job(slurm, state.run) for state in read_runs(tmp_path / "runs"))
    whole = one.id.partition("/")[0]
    assert (one.id, two.id) == (f"{whole}/0", f"{whole}/1")

    for job in (one, two):
        job.wait_for_slow_steps(0)
    kill_rank(one, 0)
    assert (one.wait_until_closed(0)["cause"], one.attempt(0)["next"]) == ("killed", "requeue")
    step = read_json(two.run.progress)["step"]
    two.wait_for_step(step + 3, 0)
    assert not one.attempt(1), "the other run is at work"
    slurm.ask("scontrol", "requeue", whole)
    assert two.wait_until_closed(0)["cause"] == "preempted"

    for job in (one, two):
        job.wait_for_slow_steps(1)
    kill_rank(one, 1)
    assert (one.wait_until_closed(1)["cause"], one.attempt(1)["next"]) == ("killed", "requeue")
    (tmp_path / "hurry").touch()
    for job in (two, one):
        assert job.wait_for_end().state == "done"
        assert_the_same(job.run, reference)
    assert (len(one.attempts()), len(two.attempts())) == (3, 2), "a run that is done does nothing"
