"""The task of a submitted Slurm job, before it becomes an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.core import processes, requeue_policy
from jobs.schedulers import task
from jobs.schedulers.slurm.allocation import SlurmAllocation


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (None, f"cannot start: scontrol does not list the nodes of this job on {processes.host()}"),
        (["n1", "n2"], "cannot start: node 0 of 3, and scontrol lists 2 nodes"),
    ],
)
def test_a_task_without_the_hosts_of_all_nodes_starts_nothing(
    hosts: list[str] | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {"JOB_ID": "7", "NODEID": "0", "JOB_NUM_NODES": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(SlurmAllocation, "hosts", lambda self: hosts)
    monkeypatch.setattr(task.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(task.agent, "run_agent", lambda node: pytest.fail("an agent was started"))
    assert task.main([str(tmp_path / "run"), "--submission", "0"]) == requeue_policy.EXIT_LAUNCH_FAILED
    assert capsys.readouterr().err == f"{message}\n"
    assert not any(tmp_path.iterdir())


def test_an_image_without_scontrol_is_named_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert task.main([str(tmp_path / "run"), "--submission", "0"]) == requeue_policy.EXIT_LAUNCH_FAILED
    host = processes.host()
    assert capsys.readouterr().err == f"cannot start: scontrol is not installed on {host}\n"
