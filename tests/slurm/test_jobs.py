"""`submit.py` on a real Slurm: sweeps, claims, outcomes, cancelling, jobs that vanish."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.results.network import judge
from disttrain.records.communication import FabricRecord
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import PROCESSORS, RunDir
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs
from tests.support.fake_runs import table_rows
from tests.support.jobs import (
    SMALL,
    settled,
    starts,
    submit,
    sweep_plan,
    wait_until,
)
from tests.support.minicluster import MiniCluster


def test_a_sweep_is_done_and_its_report_has_gpu_hours(slurm: MiniCluster, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    sweep = ("sweep", "small.yaml", "--nodes", "1", "2", "--cluster", "slurm")
    slurm.submit(*sweep, "--wait", cwd=tmp_path)
    told = json.loads(slurm.submit("status", "--json", cwd=tmp_path))["runs"]
    assert [(run["run"], run["state"], run["cluster"]) for run in told] == [
        ("n1", "done", "slurm"),
        ("n2", "done", "slurm"),
    ]
    assert not any(run["stale"] for run in told), "the nodes ran other code than this"
    run = RunDir(tmp_path / "runs" / "small" / "n2")
    attempt = read_json(run.attempt(0).record)
    assert len(set(attempt["nodes"])) == 2
    assert attempt["job_id"] == told[1]["job_id"]
    assert attempt["exit_codes"] == {"0": 0, "1": 0}
    variables = read_json(run.env_json)["variables"]
    assert variables["GLOO_SOCKET_IFNAME"]["value"] == "eth0"
    assert variables[PROCESSORS]["value"] == ""
    assert variables[PROCESSORS]["reason"].startswith("ranks are not bound: ")
    fabric = FabricRecord.model_validate(read_json(run.attempt(0).fabric))
    assert judge(fabric.backend, fabric.nodes).transport == "gloo over eth0"
    assert [node.host for node in fabric.nodes] == attempt["nodes"]
    assert all(rank.processors for node in fabric.nodes for rank in node.ranks)
    assert {link.name for node in fabric.nodes for link in node.links} == {"eth0"}
    for node in (0, 1):
        assert f"node {node} of 2 on {attempt['nodes'][node]}" in run.attempt(0).node_log(node).read_text()

    # A job's record in the accounting ends a little after its run.
    jobs = ",".join(run["job_id"] for run in told)
    wait_until(lambda: "Unknown" not in slurm.ask("sacct", "-X", "-n", "-j", jobs, "-o", "End"))
    slurm.submit("report", cwd=tmp_path)
    report = read_json(tmp_path / "runs" / "small" / "report" / "report.json")
    costs = table_rows(report, "run_costs")
    assert [(row["unit"], row["source"]) for row in costs] == [("GPU-hours", "sacct")] * 2
    assert all(row["hours"] > 0 for row in costs)
    page = (tmp_path / "runs" / "small" / "report" / "report.md").read_text()
    assert "GPU-hours" in page
    assert "2 runs: 2 done" in slurm.submit(*sweep, cwd=tmp_path)


def test_every_node_starts_once_and_a_failure_says_why(root: Path) -> None:
    submit(sweep_plan("fails", nodes=3, mode="fail"), SlurmScheduler(), root)
    ended = settled(root)["fails"]
    assert (ended.state, ended.cause) == ("failed", "launch_failed")
    assert "it went wrong" in str(ended.message)
    wait_until(lambda: sorted(starts(ended.run)) == [(0, 0), (0, 1), (0, 2)])


def test_a_job_that_vanishes_is_lost_once_slurm_says_so(root: Path, on_slurm: MiniCluster) -> None:
    submit(sweep_plan("a", mode="hang"), SlurmScheduler(), root)
    run = RunDir(root / "demo" / "a")
    wait_until(lambda: len(starts(run)) == 1)
    assert [state.state for state in asked(root)] == ["running"]
    attempt = read_json(run.attempt(0).record)
    node = int(attempt["nodes"][0].rpartition("-")[2])
    # without the batch shell and the agent, no process is left that could close the attempt
    on_slurm.on_node(node, "sh", "-c", f"pkill -KILL -x slurm_script; kill -KILL {attempt['pid']}")
    wait_until(lambda: asked(root)[0].state == "lost")
    assert asked(root)[0].retryable
    again = submit(sweep_plan("a", mode="hang"), SlurmScheduler(), root)
    assert [action.kind for action in again] == ["retry"]
    wait_until(lambda: starts(run) == [(0, 0), (1, 0)])


def asked(root: Path) -> list[RunState]:
    """The states, with Slurm's word on them."""
    return refresh(read_runs(root), SlurmScheduler())
