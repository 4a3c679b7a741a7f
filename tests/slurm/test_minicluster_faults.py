"""Injected faults have their documented effect, and can be undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster


def sleeper(cluster: MiniCluster, tmp_path: Path, node: int) -> str:
    """A job on that node."""
    command = ("sbatch", "--parsable", "--requeue", f"--nodelist={cluster.name}-{node}", "--output=/dev/null")
    job = cluster.ask(*command, "--wrap", "sleep 1000", cwd=tmp_path).strip()
    wait_until(lambda: state(cluster, job) == "RUNNING" and cluster.processes(node, only="sleep"))
    return job


def state(cluster: MiniCluster, job: str) -> str:
    return cluster.ask("squeue", "-h", "-j", job, "-o", "%T").strip()


def test_the_controller_dies_and_comes_back_with_its_jobs(faulty: MiniCluster, tmp_path: Path) -> None:
    job = sleeper(faulty, tmp_path, 1)
    address = faulty.ask("scontrol", "show", "config").partition("SlurmctldHost[0]")[2].splitlines()[0]
    faulty.kill_controller()
    assert " is UP" not in faulty._output_of("scontrol", "ping")
    faulty.start_controller()
    assert state(faulty, job) == "RUNNING"
    assert address in faulty.ask("scontrol", "show", "config")


@pytest.mark.slow
def test_slurm_marks_a_node_with_a_frozen_slurmd_down_while_its_job_runs(
    faulty: MiniCluster, tmp_path: Path
) -> None:
    job = sleeper(faulty, tmp_path, 2)
    (pid,) = faulty.processes(2, only="sleep")
    faulty.freeze(2, only="slurmd")
    faulty.wait_for_node(2, "down")
    wait_until(lambda: state(faulty, job) != "RUNNING" or not faulty.processes(2, only="sleep"))
    assert faulty.processes(2, only="sleep") == [pid]
    faulty.thaw(2)
    faulty.wait_for_node(2, "idle")
    wait_until(lambda: faulty.processes(2, only="sleep") == [])


@pytest.mark.slow
def test_a_node_dies_and_comes_back_empty(faulty: MiniCluster, tmp_path: Path) -> None:
    sleeper(faulty, tmp_path, 3)
    faulty.kill_node(3)
    assert faulty.processes(3) == []
    faulty.wait_for_node(3, "down")
    faulty.start_node(3)
    assert faulty.processes(3, only="sleep") == []
