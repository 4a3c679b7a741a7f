"""Runs whose Slurm job is taken from them, and the same run undisturbed, with which they are compared."""

from __future__ import annotations

import contextlib
import os
import re
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
from disttrain.records.checkpoint import checkpoint_steps, committed_paths
from disttrain.records.json_files import read_json, read_json_or_none, read_jsonl
from disttrain.records.run_directory import Attempt, RunDir
from jobs.status.run_state import RunState, read_state
from tests.support.jobs import WITHIN_S, wait_until
from tests.support.minicluster import MiniCluster

RANKS = 2
STEPS = 100
EVERY = 5
QUICK = 10
"""Steps of each start that take no time, two of which are saved. Later ones take a second until nothing more
happens to the job, so that it is not over before."""


def config(
    ranks: int = RANKS, slow_s: float = 1.0, every_steps: int | None = EVERY, **job: Any
) -> dict[str, Any]:
    """A rank on each node, of a model whose training depends on everything that a checkpoint holds."""
    return {
        "model": {"kind": "tests.support.small_models:SlowDeep", "slow_s": slow_s, "quick": QUICK},
        "data": {"kind": "tests.support.small_models:source", "samples": 40},
        "train": {"steps": STEPS, "local_batch_size": 4, "log_every": 5},
        "optim": {"schedule": "cosine", "warmup_steps": 3, "grad_clip": 1.0, "lr": 0.01},
        "parallel": {"ddp": {"bucket_mb": 0.002}},
        "resources": {"nodes": ranks},
        "checkpoint": {"every_steps": every_steps},
        "telemetry": {"warmup_steps": 2, "profiled_steps": 0, "sinks": []},
        "job": {"stop_check_s": 0, "time_limit_min": 20, **job},
    }


def undisturbed(folder: Path, ranks: int = RANKS) -> RunDir:
    """That run, started by hand on this machine."""
    given = folder / "undisturbed.yaml"
    given.write_text(yaml.safe_dump(config(ranks, slow_s=0)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "disttrain", "--config", str(given), "--run-dir", str(folder / "undisturbed")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr
    return RunDir(folder / "undisturbed")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-code.md"
AGENT, RANK = "jobs.schedulers.task", "disttrain"
"""Modules that processes of a run are started with."""
KILL = signal.SIGKILL


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
    def folder(self) -> Path:
        """From which it was submitted."""
        return self.run.path.parents[2]

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

    def wait_for_step(self, step: int, attempt: int) -> None:
        def reached() -> bool:
            progress = read_json_or_none(self.run.progress) or {}
            return progress.get("attempt") == attempt and progress["step"] >= step

        wait_until(reached)

    def wait_for_slow_steps(self, attempt: int) -> None:
        """Until the quick steps of an attempt are over and their checkpoints are saved."""
        wait_until(lambda: self.attempt(attempt))
        last = (self.attempt(attempt)["checkpoint_before"] or 0) + QUICK
        self.wait_for_step(last, attempt)
        saved = last // EVERY * EVERY
        wait_until(lambda: max(checkpoint_steps(self.run.checkpoints), default=0) >= saved)

    def wait_until_closed(self, attempt: int) -> dict[str, Any]:
        wait_until(lambda: self.attempt(attempt).get("ended"))
        return self.attempt(attempt)

    def wait_for_end(self) -> RunState:
        """From now on all steps are quick."""
        (self.folder / "hurry").touch()
        wait_until(lambda: self.state.state in ("done", "failed"))
        return self.state

    def signal(self, name: str, *options: str) -> None:
        """`scancel --signal`, to all processes of the step."""
        self.cluster.ask("scancel", f"--signal={name}", *options, self.id)

    def nodes(self, attempt: int) -> list[int]:
        """Numbers of the nodes that an attempt ran on, in rank order."""
        return [int(name.rpartition("-")[2]) for name in self.attempt(attempt)["nodes"]]

    def processes(self, node: int) -> dict[int, list[str]]:
        """Agents, torchruns and ranks of the run on a node, with their command lines."""
        commands = {}
        for pid in self.cluster.processes(node):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if str(self.run.path) in words and "srun" not in words[0]:
                    commands[pid] = words
        return commands

    def kill(self, attempt: int, node: int, module: str, number: int = KILL) -> None:
        """Signal the process of this module on a node of an attempt: the agent's or the rank's."""
        found = self.processes(self.nodes(attempt)[node])
        (pid,) = [
            pid for pid, words in found.items() if "-m" in words and words[words.index("-m") + 1] == module
        ]
        os.kill(pid, number)


def assert_the_same(run: RunDir, reference: RunDir) -> None:
    """Bit for bit: the losses of every step on every rank, and the parameters and optimizer at the end."""
    metrics, expected = read_json(run.metrics), read_json(reference.metrics)
    for rank in range(expected["world_size"]):
        losses = kept_losses(run, rank)
        assert list(losses) == list(range(1, expected["steps_total"] + 1)), "step records are contiguous"
        assert losses == kept_losses(reference, rank)
    ours, theirs = final_tensors(run), final_tensors(reference)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("status", "steps", "loss_history", "world_size"):
        assert metrics[name] == expected[name]
    points = [
        [(point["step"], point["loss"], point["metrics"]) for point in each["eval_history"]]
        for each in (metrics, expected)
    ]
    assert points[0] == points[1]


def kept_losses(run: RunDir, rank: int) -> dict[int, tuple[float, float]]:
    """Loss and learning rate by step; of a step done twice the newest attempt's."""
    return {
        record["step"]: (record["loss"], record["lr"])
        for attempt in run.attempts()
        if attempt.steps(rank).exists()
        for record in read_jsonl(attempt.steps(rank))
    }


def steps_lost(run: RunDir) -> int:
    """How many steps rank 0 did more than once."""
    paths = [attempt.steps(0) for attempt in run.attempts() if attempt.steps(0).exists()]
    return sum(1 for path in paths for _ in read_jsonl(path)) - len(kept_losses(run, 0))


def final_tensors(run: RunDir) -> dict[str, torch.Tensor]:
    path = committed_paths(run.checkpoints)[0]
    newest = CommittedCheckpoint(path, read_manifest(path))
    tensors = {
        name: torch.empty(tensor.shape, dtype=dtype_of(tensor))
        for name, tensor in newest.manifest.tensors.items()
        if name.startswith((MODEL, OPTIMIZER))
    }
    load_tensors(tensors, newest)
    return tensors


def submitted(
    cluster: MiniCluster, folder: Path, resources: dict[str, int] | None = None, **given: Any
) -> Job:
    """The run of `config` with these arguments, on its way."""
    made = config(**given)
    made["model"]["hurry"] = str(folder / "hurry")
    return Job.submit(cluster, folder, made | ({"resources": resources} if resources else {}))


def preempt(cluster: MiniCluster) -> None:
    """Submit an urgent job that needs every node and ends at once."""
    options = [
        "--partition=urgent",
        f"--nodes={cluster.nodes}",
        "--exclusive",
        "--time=1",
        "--output=/dev/null",
    ]
    cluster.ask("sbatch", *options, "--wrap", "true", cwd=Path("/"))


def own_program(folder: Path) -> Path:
    """Write the program of the page on own scripts as `train.py`; a step takes a second until the file that
    is returned exists, so that no machine is so fast that the first start finishes."""
    (program,) = re.findall(r"```python\n([^`]*begins after step.*?)```", PAGE.read_text(), re.S)
    go = folder / "go"
    slow = f"import os, time; time.sleep(0.01 if os.path.exists({str(go)!r}) else 1)"
    assert "    step += 1\n" in program
    (folder / "train.py").write_text(program.replace("    step += 1\n", f"    step += 1\n    {slow}\n"))
    return go


def preempt_and_finish(cluster: MiniCluster, folder: Path, go: Path) -> RunDir:
    """Preempt the only run of `own_program` in a folder once both ranks train, and let its second start
    finish; both ranks resume from the step at which they stopped."""
    (path,) = (folder / "runs").glob("*/*/run.json")
    run = RunDir(path.parent)
    logs = [run.attempt(0).rank_log(rank) for rank in range(2)]
    wait_until(lambda: all(log.exists() and "begins after step 0\n" in log.read_text() for log in logs))
    preempt(cluster)
    wait_until(lambda: (read_json_or_none(run.attempt(0).record) or {}).get("next"))
    go.touch()
    wait_until(lambda: read_state(run).state in ("done", "failed", "lost"))
    ends = [read_json(attempt.record) for attempt in run.attempts()]
    assert [(each["cause"], each["next"]) for each in ends] == [("preempted", "requeue"), ("finished", None)]
    before, last = run.attempts()
    for rank in range(2):
        stopped = re.search(rf"rank {rank} stops after step (\d+)", before.rank_log(rank).read_text())
        assert stopped is not None
        assert f"rank {rank} of 2 begins after step {stopped[1]}\n" in last.rank_log(rank).read_text()
    return run


@contextlib.contextmanager
def nothing_starts(cluster: MiniCluster) -> Iterator[None]:
    """Start no job of the partition `gpu` within the block."""
    cluster.ask("scontrol", "update", "partition=gpu", "state=down")
    try:
        yield
    finally:
        cluster.ask("scontrol", "update", "partition=gpu", "state=up")
