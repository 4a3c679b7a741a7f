"""Nodes of a job find each other or fail with a reason: jobs side by side, ports in use, clocks off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.node import rendezvous
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.run_state import RunState, read_runs
from tests.support.jobs import ended_afterwards, wait_until
from tests.support.minicluster import SUBMIT, MiniCluster, node_prefix
from tests.support.requeued import nothing_starts

CONFIG = """\
model: {kind: mlp}
data: {kind: digits}
train: {steps: 20, local_batch_size: 16, log_every: 5}
telemetry: {warmup_steps: 2, profiled_steps: 0, sinks: []}
job: {time_limit_min: 20, rendezvous_timeout_s: 300}
"""


@pytest.fixture
def pair(on_slurm: MiniCluster, tmp_path: Path) -> Iterator[MiniCluster]:
    """The cluster with nodes 1 and 2 alone in use, so that every job of two nodes is on these."""
    (tmp_path / "small.yaml").write_text(CONFIG)
    others = f"{on_slurm.name}-[3-{on_slurm.nodes}]"
    on_slurm.ask("scontrol", "update", f"nodename={others}", "state=drain", "reason=test")
    try:
        with ended_afterwards(tmp_path / "runs", SlurmScheduler()):
            yield on_slurm
    finally:
        on_slurm.ask("scontrol", "update", f"nodename={others}", "state=resume")


def submitted(cluster: MiniCluster, cwd: Path, name: str, *flags: str) -> RunDir:
    """A run of two nodes, on its way; nobody waits for it."""
    cluster.submit("run", "small.yaml", "--name", name, "--nodes", "2", "--cluster", "slurm", *flags, cwd=cwd)
    (state,) = read_runs(cwd / "runs", name)
    return state.run


def ended(run: RunDir) -> RunState:
    """Its state, once it has ended."""

    def now() -> RunState:
        (state,) = read_runs(run.path.parent.parent, run.sweep)
        return state

    wait_until(lambda: not now().active)
    return now()


def log(run: RunDir) -> str:
    return "\n".join(path.read_text() for path in sorted(run.path.glob("attempts/*/node-*.log")))


SHUFFLED = """\
node_setup:
  - export SLURM_NODEID=$((SLURM_STEP_NUM_NODES - 1 - SLURM_NODEID))
  - export SLURM_STEP_NODELIST=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | tac | paste -sd,)
"""
"""The nodes of a step in another order than those of the job, as Slurm 26.05 orders them by the topology."""


@pytest.mark.slow
def test_jobs_on_the_same_nodes_start_at_once_in_either_order(pair: MiniCluster, tmp_path: Path) -> None:
    (tmp_path / "shuffled.yaml").write_text(SHUFFLED)
    with nothing_starts(pair):
        runs = [
            submitted(pair, tmp_path, "counted", "--slurm", "gpus=gpus"),
            submitted(pair, tmp_path, "shuffled", "--profile", "./shuffled.yaml"),
        ]
    for run in runs:
        assert ended(run).state == "done", log(run)
        assert read_json(run.metrics)["world_size"] == 2
    attempts = [read_json(run.attempt(0).record) for run in runs]
    rendezvous = [read_json(run.attempt(0).rendezvous) for run in runs]
    first, second = f"{pair.name}-1", f"{pair.name}-2"
    assert [attempt["nodes"] for attempt in attempts] == [[first, second], [second, first]]
    assert [each["address"] for each in rendezvous] == [first, second]
    assert "#SBATCH --gpus=2\n" in runs[0].script.read_text()
    assert max(attempt["started"] for attempt in attempts) < min(attempt["ended"] for attempt in attempts)
    assert rendezvous[0]["port"] != rendezvous[1]["port"]


@contextmanager
def port_holder(cluster: MiniCluster, *way: str) -> Iterator[subprocess.Popen[str]]:
    """`tests.support.port_holder` on the first node, where the rendezvous is; it ends with the block."""
    command = [*node_prefix(cluster.name, 1), sys.executable, "-m", "tests.support.port_holder", *way]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SUBMIT.parent)}, **pipes) as process:
        try:
            yield process
        finally:
            let_go(process)


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_few_ports_are_free_and_clocks_are_off(pair: MiniCluster, tmp_path: Path) -> None:
    """Wall clocks of agent, torchrun and ranks: 60 s slow, and fast by more than the job's time limit."""
    pair.set_clock(1, -60)
    pair.set_clock(2, 1500)
    try:
        with port_holder(pair, "range", "3") as holder:
            first, _, last = says(holder).removeprefix("free ").partition("-")
            run = submitted(pair, tmp_path, "few", "--skip-preflight")
            assert ended(run).state == "done", log(run)
    finally:
        pair.set_clock(1, 0)
        pair.set_clock(2, 0)
    assert int(first) <= read_json(run.attempt(0).rendezvous)["port"] <= int(last)
    metrics = read_json(run.metrics)
    assert (metrics["world_size"], metrics["steps"]) == (2, 20)
    logs = [run.attempt(0).node_log(node).read_text() for node in (0, 1)]
    started = [datetime.fromisoformat(text.split()[0]) for text in logs]
    assert 1500 < (started[1] - started[0]).total_seconds() < 1650, "no clock was off"
    assert re.search(r"clock is 15.. s ahead of that of Slurm's", logs[1])


@pytest.mark.slow
def test_no_port_is_free_and_the_job_says_so(pair: MiniCluster, tmp_path: Path) -> None:
    with port_holder(pair, "range", "0") as holder:
        assert says(holder) == "free none"
        run = submitted(pair, tmp_path, "none")
        state = ended(run)
    assert (state.state, state.cause) == ("failed", "launch_failed")
    assert "no free port in" in str(state.message)
    assert not run.metrics.exists()


def test_nobody_takes_the_port_before_torchrun_listens(pair: MiniCluster, tmp_path: Path) -> None:
    run = expected(tmp_path, "greedy")
    with port_holder(pair, "after", str(run.attempt(0).rendezvous)) as greedy:
        assert submitted(pair, tmp_path, "greedy").path == run.path
        assert says(greedy).startswith("sees")
        wait_until(lambda: read_json_or_none(run.progress) is not None)
        let_go(greedy)
        assert says(greedy).startswith("refused")
    assert ended(run).state == "done", log(run)
    assert read_json(run.metrics)["world_size"] == 2


@pytest.mark.slow
def test_a_server_that_takes_it_all_the_same_is_noticed(pair: MiniCluster, tmp_path: Path) -> None:
    """One that sets SO_REUSEADDR, as torchrun itself does, can be the first to listen. Whoever comes
    second is refused by the kernel: the attempt fails and says so."""
    run = expected(tmp_path, "faster")
    with port_holder(pair, "after", str(run.attempt(0).rendezvous), "--reuse") as faster:
        submitted(pair, tmp_path, "faster")
        port = says(faster).removeprefix("sees ")
        assert says(faster) == f"has {port}"
        wait_until(lambda: (read_json_or_none(run.attempt(0).record) or {}).get("ended"))
    assert read_json(run.attempt(0).record)["cause"] == "launch_failed"
    assert "address already in use" in log(run).lower()


def expected(cwd: Path, name: str) -> RunDir:
    """Where a run will be that is submitted by this name."""
    return RunDir(cwd / "runs" / name / "n2")


ALONE = """\
#!/bin/sh
# Torchrun as it would be if its nodes had not found each other: each a world of its own.
while [ "$1" != -m ]; do shift; done
exec {python} -m torch.distributed.run --nnodes 1 --nproc-per-node 1 --master-port {port} "$@"
"""


def test_a_wrong_world_is_refused_by_the_trainer(
    pair: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = tmp_path / "alone.sh"
    launcher.write_text(ALONE.format(python=sys.executable, port=rendezvous.port_range()[0]))
    launcher.chmod(0o755)
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(launcher))
    run = submitted(pair, tmp_path, "wrong")
    state = ended(run)
    assert (state.state, state.cause, state.retryable) == ("failed", "refused", False)
    assert "the world has 1 nodes x 1 ranks, but the config requests resources.nodes=2" in str(state.message)
    assert not run.metrics.exists()
