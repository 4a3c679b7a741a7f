"""The pre-flight on a real Slurm: nodes with faults are found before the ranks start.

Faults are injected as follows. A slow link: `tc` on both of its ends. A missing GPU and a wrong clock: the
site profile's `node_setup` sets SLURM_GPUS_ON_NODE, or preloads libfaketime, on the second node. A private
run directory and a full disk: a tmpfs in the mount namespace of one node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.node import Preflight
from disttrain.records.run_directory import RunDir
from jobs.core import excluded_nodes
from jobs.minicluster import packages
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from tests.support.jobs import settled, submit, sweep_plan, wait_until
from tests.support.minicluster import MiniCluster, need
from tests.support.requeued import Job

GBIT = 1_000_000_000


def verdict(run: RunDir, attempt: int) -> Preflight:
    return Preflight.model_validate(read_json(run.attempt(attempt).preflight))


@contextmanager
def small_disk(cluster: MiniCluster, number: int, folder: Path) -> Iterator[None]:
    """A tmpfs of 1 MiB over a folder, on one node."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster.on_node(number, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder))
    try:
        yield
    finally:
        cluster.on_node(number, "umount", "--lazy", str(folder))


def send(root: Path, name: str, nodes: int, profile: dict[str, Any], **sections: Any) -> RunDir:
    """Submit a run that is not requeued, as a sweep of its own, with this site profile."""
    path = root.parent / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(profile))
    plan = sweep_plan(name, nodes=nodes, max_requeues=0, rendezvous_timeout_s=8)
    (run,) = plan.runs
    config = type(run.config).model_validate({**run.config.as_dict(), **sections})
    plan = dataclasses.replace(plan, name=f"sweep-{name}", runs=(dataclasses.replace(run, config=config),))
    submit(plan, SlurmScheduler(ProfileSelection(str(path))), root)
    return RunDir(root / plan.name / name)


@pytest.mark.slow
def test_each_fault_is_refused_with_one_line(root: Path, faulty: MiniCluster, tmp_path: Path) -> None:
    library = packages.faketime()
    need(None if library else "libfaketime is not installed; install with: apt-get install libfaketime")
    on_second, first = "[ $SLURM_NODEID = 0 ] || export", {"nodelist": f"{faulty.name}-1"}
    late = f"{on_second} LD_PRELOAD={library} FAKETIME=+1500"
    private, checkpoints = tmp_path / "private", tmp_path / "checkpoints"
    with small_disk(faulty, 1, checkpoints), small_disk(faulty, 4, private):
        runs = {
            "gpus": send(root, "gpus", 2, {"node_setup": [f"{on_second} SLURM_GPUS_ON_NODE=0"]}),
            "clock": send(root, "clock", 2, {"node_setup": [late]}),
            "disk": send(root, "disk", 1, {"sbatch": first}, checkpoint={"dir": str(checkpoints)}),
            "private": send(
                private / "runs", "private", 2, {"sbatch": {"nodelist": f"{faulty.name}-[3-4]"}}
            ),
        }  # fmt: skip
        states = settled(root) | settled(private / "runs")
    lines = {name: str(states[name].message) for name in runs}
    assert {states[name].cause for name in runs} == {"preflight_failed"}, lines
    hosts = read_json(runs["gpus"].attempt(0).record)["nodes"]
    assert f"node {hosts[1]}: this node has 0 of the 1 GPUs that the job requested; resubmit" in lines["gpus"]
    assert "clocks differ" in lines["clock"]
    assert "start the time service (chronyd, ntpd)" in lines["clock"]
    assert f"{checkpoints}/sweep-disk/disk has 1.0 MiB free" in lines["disk"]
    assert "delete old runs" in lines["disk"]
    assert f"node {faulty.name}-4 wrote nothing that node {faulty.name}-3 can see" in lines["private"]
    assert "mount the shared file system there" in lines["private"]
    assert all("\n" not in line for line in lines.values())
    assert not any(list(run.attempt(0).path.glob("rank-*.log")) for run in runs.values()), "no rank started"
    assert {each.host for each in excluded_nodes.read(root)} == {hosts[1]}, "one of two clocks names no node"
    assert excluded_nodes.read(private / "runs") == [], "either of two nodes may lack the mount"
    shown = faulty.submit("status", "--runs", str(root), cwd=tmp_path)
    assert "preflight_failed" in shown


@pytest.mark.slow
def test_a_node_on_a_slow_link_is_named_and_the_run_finishes_elsewhere(
    faulty: MiniCluster, tmp_path: Path
) -> None:
    slow = f"{faulty.name}-2"
    config = {
        "model": {"kind": "mlp"},
        "data": {"kind": "digits"},
        "train": {"steps": 5, "local_batch_size": 4},
        "telemetry": {"warmup_steps": 1, "sinks": []},
        "parallel": {"ddp": {"bucket_mb": 1.0}},
        "resources": {"nodes": 3},
        "job": {"time_limit_min": 10, "preflight": "full"},
    }
    faulty.shape(2, GBIT // 10)
    faulty.ask("scontrol", "update", f"nodename={faulty.name}-4", "state=drain", "reason=test")
    try:
        job = Job.submit(faulty, tmp_path, config)
        wait_until(lambda: read_json_or_none(job.run.attempt(0).record))
        faulty.ask("scontrol", "update", f"nodename={faulty.name}-4", "state=resume")
        first = job.wait_until_closed(0)
        assert (first["cause"], first["next"], first["failed_nodes"]) == (
            "preflight_failed",
            "requeue",
            [slow],
        )
        assert f"the link of node {slow} moves" in first["message"]
        assert job.wait_for_end().state == "done"
    finally:
        faulty.shape(2, GBIT)
        faulty.resume_drained()
    assert slow not in job.attempt(1)["nodes"]
    assert verdict(job.run, 1).verdict in ("passed", "warned")
    measured = verdict(job.run, 0).bandwidth
    assert measured is not None
    assert [each.bytes for each in measured.all_reduce] == [2**20, 2**24]
    assert len(measured.links) == 6
    assert slow in faulty.submit("nodes", cwd=tmp_path)
    shown = faulty.submit(
        "sweep", "job.yaml", "--nodes", "2", "--dry-run", "--cluster", "slurm", cwd=tmp_path
    )
    assert f"--exclude={slow}" in shown, "the next submission avoids the node"
