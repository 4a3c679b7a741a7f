"""The run directory: where each file of a run lives. Imports nothing beyond the standard library."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Attempt:
    """One start of a run: `attempts/000/`, `attempts/001/`, ..."""

    path: Path
    number: int

    @property
    def record(self) -> Path:
        return self.path / "attempt.json"

    @property
    def rendezvous(self) -> Path:
        return self.path / "rendezvous.json"

    @property
    def tensorboard(self) -> Path:
        """Within the run's `tensorboard/`, so that it shows all attempts together."""
        return RunDir(self.path.parent.parent).tensorboard / self.path.name

    def node_log(self, node: int) -> Path:
        return self.path / f"node-{node:02d}.log"

    def node_record(self, node: int) -> Path:
        return self.path / f"node-{node:02d}.json"

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def steps(self, rank: int) -> Path:
        return self.path / f"steps-{rank:05d}.jsonl"

    def gpu_samples(self, node: int) -> Path:
        return self.path / f"gpu-node{node:02d}.jsonl"

    def gpu_devices(self, node: int) -> Path:
        return self.path / f"gpu-node{node:02d}.json"

    def host_samples(self, node: int) -> Path:
        return self.path / f"host-node{node:02d}.jsonl"

    def comm(self, rank: int) -> Path:
        """Collectives of the sampled steps."""
        return self.path / f"comm-{rank:05d}.jsonl"

    def trace(self, rank: int) -> Path:
        """The trace that was asked for, as PyTorch's profiler exports it."""
        return self.path / f"trace-{rank:05d}.json.gz"

    def profile(self, rank: int) -> Path:
        """What is in that trace, beside the step clock's figures."""
        return self.path / f"profile-{rank:05d}.json"

    @property
    def layers(self) -> Path:
        """What each layer took, where that was asked for."""
        return self.path / "layers.json"

    def error(self, rank: int) -> Path:
        return self.path / f"error-{rank:05d}.json"

    @property
    def stop(self) -> Path:
        """A request to stop that came in on a node: `cause`, `time`, and what was seen."""
        return self.path / "stop.json"

    def node_exit(self, node: int) -> Path:
        """How a node's share of the attempt ended, for the node that closes it."""
        return self.path / f"node-{node:02d}.exit.json"

    def node_oom(self, node: int) -> Path:
        """There if the kernel ended processes of a node's share for want of memory: how many."""
        return self.path / f"node-{node:02d}.oom.json"

    def superseded_by(self) -> int | None:
        """The newest attempt, if there is one after this: whoever is behind writes nothing shared any more.

        A job taken for dead may still live on a node that was frozen, beside the one in its place.
        """
        newest = max(_numbers(self.path.parent), default=self.number)
        return newest if newest > self.number else None


@dataclass(frozen=True)
class RunDir:
    """`runs/<sweep>/<run>/`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def sweep(self) -> str:
        return self.path.parent.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def script(self) -> Path:
        """The batch script as it was submitted last, where Slurm got one."""
        return self.path / "submit.sbatch"

    @property
    def env_json(self) -> Path:
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def progress(self) -> Path:
        """Small live state that rank 0 rewrites as it goes (step, rate, loss)."""
        return self.path / "progress.json"

    @property
    def usage(self) -> Path:
        """What the run used, by the cluster's accounting."""
        return self.path / "usage.json"

    @property
    def submissions(self) -> Path:
        """The submission journal: one folder entry per submission (see `jobs.core.journal`)."""
        return self.path / "submissions"

    @property
    def done(self) -> Path:
        return self.path / "DONE"

    @property
    def failed(self) -> Path:
        return self.path / "FAILED"

    @property
    def stop(self) -> Path:
        return self.path / "STOP"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.path / "attempts" / f"{number:03d}", number)

    def attempts(self) -> list[Attempt]:
        """The attempts there are, oldest first."""
        return [self.attempt(number) for number in sorted(_numbers(self.path / "attempts"))]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


_CHECKPOINT = re.compile(r"step-(\d{8,})")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the committed checkpoints in `folder`, newest first, whatever they hold."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))), reverse=True)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry) for entry in os.listdir(folder) if entry.isdigit()]
    except FileNotFoundError:
        return []
