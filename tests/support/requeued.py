"""Runs whose Slurm job is taken from them, and the same run undisturbed, with which they are compared."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from disttrain.checkpoint.folder import CommittedCheckpoint, read_manifest
from disttrain.checkpoint.state import MODEL, OPTIMIZER
from disttrain.checkpoint.storage import dtype_of, load_tensors
from disttrain.records.checkpoint import committed_paths
from disttrain.records.json_files import read_json, read_json_or_none, read_jsonl
from disttrain.records.run_directory import Attempt, RunDir
from jobs.status.run_state import RunState, read_state
from tests.support.jobs import WITHIN_S, wait_until
from tests.support.lineage import read_steps
from tests.support.minicluster import MiniCluster

RANKS = 3
STEPS = 100
SLOW_S = 0.1


def config(
    steps: int = STEPS, slow_s: float = SLOW_S, every_steps: int | None = 20, **job: Any
) -> dict[str, Any]:
    """Three ranks of a model whose training depends on everything that a checkpoint holds; keys of `job`."""
    return {
        "model": {"kind": "tests.support.small_models:SlowDeep", "slow_s": slow_s},
        "data": {"kind": "tests.support.small_models:source", "samples": 40},
        "train": {"steps": steps, "local_batch_size": 4, "log_every": 5},
        "optim": {"schedule": "cosine", "warmup_steps": 3, "grad_clip": 1.0, "lr": 0.01},
        "parallel": {"ddp": {"bucket_mb": 0.002}},
        "resources": {"nodes": RANKS},
        "checkpoint": {"every_steps": every_steps},
        "telemetry": {"warmup_steps": 2, "profiled_steps": 0, "sinks": []},
        "job": {"stop_check_s": 0, "time_limit_min": 20, **job},
    }


def undisturbed(folder: Path, made: dict[str, Any] | None = None) -> RunDir:
    """That run, or the one of the config `made`, started by hand on this machine."""
    given = folder / "undisturbed.yaml"
    given.write_text(yaml.safe_dump(made or config(slow_s=0)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["-m", "disttrain", "--config", str(given), "--run-dir", str(folder / "undisturbed")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    return RunDir(folder / "undisturbed")


@dataclass(frozen=True)
class Job:
    """A run on the cluster, as its files and Slurm tell it."""

    cluster: MiniCluster
    run: RunDir

    @classmethod
    def submit(cls, cluster: MiniCluster, folder: Path, made: dict[str, Any]) -> Job:
        (folder / "job.yaml").write_text(yaml.safe_dump(made))
        cluster.submit("run", "job.yaml", "--cluster", "slurm", "--no-report", cwd=folder)
        (path,) = (folder / "runs" / "job").glob("*/run.json")
        return cls(cluster, RunDir(path.parent))

    @property
    def state(self) -> RunState:
        return read_state(self.run)

    @property
    def id(self) -> str:
        return str(self.state.job_id)

    def attempt(self, number: int) -> dict[str, Any]:
        return read_json_or_none(self.run.attempt(number).record) or {}

    def attempts(self) -> list[Attempt]:
        return self.run.attempts()

    def wait_for_step(self, step: int, attempt: int = 0) -> None:
        def reached() -> bool:
            progress = read_json_or_none(self.run.progress) or {}
            return progress.get("attempt") == attempt and progress["step"] >= step

        wait_until(reached)

    def wait_until_closed(self, attempt: int) -> dict[str, Any]:
        wait_until(lambda: self.attempt(attempt).get("ended"))
        return self.attempt(attempt)

    def wait_for_end(self) -> RunState:
        wait_until(lambda: self.state.state in ("done", "failed"))
        return self.state

    def signal(self, name: str, *options: str) -> None:
        """`scancel --signal`, to all processes of the step."""
        self.cluster.ask("scancel", f"--signal={name}", *options, self.id)

    def nodes(self, attempt: int) -> list[int]:
        """Numbers of the nodes that an attempt ran on, in rank order."""
        return [int(name.rpartition("-")[2]) for name in self.attempt(attempt)["nodes"]]

    def kill_agent(self, attempt: int, rank: int) -> None:
        """Send SIGKILL to the agent of a node of the job."""
        agents = []
        for pid in self.cluster.processes(self.nodes(attempt)[rank]):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if words[1:3] == ["-m", "jobs.schedulers.task"] and str(self.run.path) in words:
                    agents.append(pid)
        (agent,) = agents
        os.kill(agent, signal.SIGKILL)


def assert_the_same(run: RunDir, reference: RunDir) -> None:
    """Bit for bit: the losses of every step on every rank, and the parameters and optimizer at the end."""
    steps = read_json(reference.metrics)["steps_total"]
    for rank in range(RANKS):
        found = kept_losses(run, rank)
        assert list(found) == list(range(1, steps + 1)), "step records are contiguous"
        assert found == kept_losses(reference, rank)
    ours, theirs = final_tensors(run), final_tensors(reference)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    metrics, expected = read_json(run.metrics), read_json(reference.metrics)
    for name in ("status", "steps", "loss_history"):
        assert metrics[name] == expected[name]
    losses = [(point["step"], point["loss"], point["metrics"]) for point in metrics["eval_history"]]
    assert losses == [(p["step"], p["loss"], p["metrics"]) for p in expected["eval_history"]]


def kept_losses(run: RunDir, rank: int) -> dict[int, tuple[float, float]]:
    """Loss and learning rate by step; of a step done twice the newest attempt's."""
    return {
        record["step"]: (record["loss"], record["lr"])
        for attempt in run.attempts()
        if attempt.steps(rank).exists()
        for record in read_jsonl(attempt.steps(rank))
    }


def steps_lost(run: RunDir, rank: int = 0) -> int:
    """How many steps were done more than once."""
    paths = [attempt.steps(rank) for attempt in run.attempts() if attempt.steps(rank).exists()]
    return sum(1 for path in paths for _ in read_jsonl(path)) - len(kept_losses(run, rank))


def final_tensors(run: RunDir) -> dict[str, torch.Tensor]:
    path = committed_paths(run.checkpoints)[0]
    newest = CommittedCheckpoint(path, read_manifest(path))
    found = {
        name: torch.empty(tensor.shape, dtype=dtype_of(tensor))
        for name, tensor in newest.manifest.tensors.items()
        if name.startswith((MODEL, OPTIMIZER))
    }
    load_tensors(found, newest)
    return found


def submitted(cluster: MiniCluster, folder: Path, **given: Any) -> Job:
    folder.mkdir(exist_ok=True)
    return Job.submit(cluster, folder, config(**given))


def preempt(cluster: MiniCluster) -> None:
    """Submit an urgent job that needs every node and ends at once."""
    urgent = [
        "--partition=urgent",
        f"--nodes={cluster.nodes}",
        "--exclusive",
        "--time=1",
        "--output=/dev/null",
    ]
    cluster.ask("sbatch", *urgent, "--wrap", "true", cwd=Path("/"))


@contextlib.contextmanager
def nothing_starts(cluster: MiniCluster) -> Iterator[None]:
    """Start no job of the partition `gpu` within the block."""
    cluster.ask("scontrol", "update", "partition=gpu", "state=down")
    try:
        yield
    finally:
        cluster.ask("scontrol", "update", "partition=gpu", "state=up")


def long_status(job: Job) -> dict[str, Any]:
    """The only run in `status --long`, with its usage."""
    said = json.loads(job.cluster.submit("status", "--long", "--json", cwd=job.run.path.parents[2]))
    (found,), (usage,) = said["runs"], said["usage"]
    return {**found, "usage": usage}


def assert_figures_cover_all_attempts(job: Job) -> None:
    """Sums and counts go on through requeues; the first steps after each start are left out."""
    metrics = read_json(job.run.metrics)
    kept = read_steps(job.run, 0)
    attempts = [number for number, _ in kept.values()]
    left_out = [step for step in kept if attempts[: step - 1][-2:].count(attempts[step - 1]) < 2]
    counted = [step for first, last in metrics["left_out"] for step in range(first, last + 1)]
    assert counted == left_out, "two steps after each start"
    assert metrics["measured_steps"] == STEPS - len(left_out)
    assert metrics["resumed_step"] == attempts.index(attempts[-1])
    durations = [record["step_s"] for _, record in kept.values()]
    assert sum(durations) <= metrics["seconds_total"] <= 3 * sum(durations)
    progress = read_json(job.run.progress)
    assert (progress["attempt"], progress["step"]) == (attempts[-1], STEPS)
