"""Paths of the files in a run directory. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

RUN_DIR = "DISTTRAIN_RUN_DIR"
"""Environment variable of a `command`: its run directory."""
ATTEMPT = "DISTTRAIN_ATTEMPT"
"""Environment variable of a `command`: the number of this start of the run, from 0."""
CHECKPOINT_DIR = "DISTTRAIN_CHECKPOINT_DIR"
"""Environment variable of a `command`: `checkpoints` of its run directory."""
SAVED = "DISTTRAIN_SAVED"
"""Environment variable of a `command`: a file in `checkpoints` to touch after a save elsewhere."""

PROCESSORS = "DISTTRAIN_PROCESSORS"
"""Environment variable with the processors of each local rank, `0,1;2,3`; empty without a binding."""
ADAPTERS = "DISTTRAIN_ADAPTERS"
"""Environment variable with the ports of adapters that NCCL should use on this node, `mlx5_0/1,mlx5_1/1`;
empty where it should use TCP."""


@dataclass(frozen=True)
class Attempt:
    """Folder of one attempt: `attempts/000/`, `attempts/001/`, ..."""

    path: Path
    number: int
    directory_id: str | None = field(default=None, compare=False)
    """Id of the run directory in which the attempt began (`RunDir.identified`); None if unknown."""

    @property
    def record(self) -> Path:
        return self.path / "attempt.json"

    @property
    def rendezvous(self) -> Path:
        return self.path / "rendezvous.json"

    @property
    def tensorboard(self) -> Path:
        """A subfolder of the run's `tensorboard/`, so that TensorBoard shows all attempts together."""
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
        """Collectives of the profiled steps."""
        return self.path / f"comm-{rank:05d}.jsonl"

    def trace(self, rank: int) -> Path:
        """The requested trace, as PyTorch's profiler exports it."""
        return self.path / f"trace-{rank:05d}.json.gz"

    @property
    def layers(self) -> Path:
        """Times of each layer, if requested."""
        return self.path / "layers.json"

    @property
    def fabric(self) -> Path:
        """The network that the attempt used."""
        return self.path / "fabric.json"

    def nccl_log(self, node: int) -> Path:
        """NCCL's log of the first rank of a node; absent without NCCL."""
        return self.path / f"nccl-node{node:02d}.log"

    @property
    def preflight(self) -> Path:
        """Verdict on the nodes before the ranks start."""
        return self.path / "preflight.json"

    @property
    def preflight_folder(self) -> Path:
        """Folder of the facts that each node writes for the pre-flight, so that a short listing shows all."""
        return self.path / "preflight"

    def preflight_facts(self, node: int) -> Path:
        return self.preflight_folder / f"node-{node:02d}.json"

    def error(self, rank: int) -> Path:
        return self.path / f"error-{rank:05d}.json"

    @property
    def stop(self) -> Path:
        """A stop request received by a node's agent: `cause`, `time` and the signal."""
        return self.path / "stop.json"

    @property
    def exits(self) -> Path:
        """Folder of the nodes' exits alone, so that one short listing shows all of them."""
        return self.path / "exits"

    def node_exit(self, node: int, code: int) -> Path:
        """Exit of a node's torchrun: an empty file, whose name fits on a full disk."""
        return self.exits / f"node-{node:02d}.code-{code}"

    def unrecorded(self, cause: str, error: int | None) -> Path:
        """An end whose record failed with this `errno`: an empty file, whose name fits on a full disk."""
        return self.exits / f"unrecorded.{cause}.{error}"

    def node_oom(self, node: int) -> Path:
        """Number of processes that the OOM killer ended on a node; absent if there were none."""
        return self.path / f"node-{node:02d}.oom.json"

    def node_unconnected(self, node: int) -> Path:
        """Number of a command's processes on a node; absent if one had a connection to another process."""
        return self.path / f"node-{node:02d}.unconnected.json"

    def node_ranks(self, node: int) -> Path:
        """Positions of a node's ranks before its agent ended them; absent if they ended by themselves."""
        return self.path / f"node-{node:02d}.ranks.json"

    @property
    def checkpoint_warning(self) -> Path:
        """A checkpoint that cannot be restored: `message`. Removed once a later one was read back."""
        return self.path / "checkpoint-warning.json"

    @property
    def hang_warning(self) -> Path:
        """A hang that its node's agent will end soon: `message`, `ends_at`. Removed if training goes on."""
        return self.path / "hang-warning.json"

    def superseded(self) -> str | None:
        """Reason for which this attempt must not write shared files; None if it may write them.

        A job presumed dead may resume on a node that was frozen, beside its replacement. One listing of a
        folder finds both a newer attempt and a run directory that was replaced.
        """
        return self.superseded_by(_names(self.path.parent))

    def superseded_by(self, names: Sequence[str]) -> str | None:
        """`superseded`, for the names in the folder of the attempts."""
        if self._is_replaced(names):
            return "the run directory was moved away or deleted"
        newest = max(_numbers(names), default=self.number)
        return f"attempt {newest} of this run has begun" if newest > self.number else None

    def is_replaced(self) -> bool:
        """Whether the run directory was moved away or deleted since this attempt began.

        Another run of the same name may be at its path, so that this attempt must write no file there.
        """
        return self._is_replaced(_names(self.path.parent))

    def _is_replaced(self, names: Sequence[str]) -> bool:
        return self.directory_id is not None and self.directory_id not in names


@dataclass(frozen=True)
class RunDir:
    """`runs/<sweep>/<run>/`."""

    path: Path
    directory_id: str | None = field(default=None, compare=False)
    """Random name of an empty file in `attempts/`: distinguishes this directory from another one that is at
    the same path later. None if unknown."""

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
        """The batch script of the last submission to Slurm."""
        return self.path / "submit.sbatch"

    @property
    def env_json(self) -> Path:
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def comm_bench(self) -> Path:
        """Result of `python -m disttrain.comm_bench`."""
        return self.path / "comm-bench.json"

    @property
    def fabric_ab(self) -> Path:
        """Result of `python -m jobs.arms`."""
        return self.path / "fabric-ab.json"

    @property
    def progress(self) -> Path:
        """Live state of the run, rewritten by rank 0: step, samples per second, loss."""
        return self.path / "progress.json"

    @property
    def usage(self) -> Path:
        """GPU-hours by Slurm's accounting."""
        return self.path / "usage.json"

    @property
    def submissions(self) -> Path:
        """The submission journal: one entry per submission (see `jobs.core.journal`)."""
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
        return Attempt(self.path / "attempts" / f"{number:03d}", number, self.directory_id)

    def attempts(self) -> list[Attempt]:
        """Existing attempts, oldest first."""
        return [self.attempt(number) for number in sorted(_numbers(_names(self.path / "attempts")))]

    def identified(self, *, create: bool = False) -> RunDir:
        """This run directory with its id. `create` makes an id if there is none. Raises `OSError`."""
        folder = self.path / "attempts"
        found = next((name for name in _names(folder) if name.startswith(_ID)), None)
        if found is None and create:
            found = f"{_ID}{os.urandom(8).hex()}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / found).touch()
        return replace(self, directory_id=found)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


ID_VARIABLE = "DISTTRAIN_RUN_DIRECTORY_ID"
"""Environment variable by which an agent passes the id of the run directory to its ranks."""


def attempt_of_job(run_dir: Path, number: int) -> Attempt:
    """The attempt of this rank's job, in the run directory of the agent that started the rank."""
    return RunDir(run_dir.resolve(), os.environ.get(ID_VARIABLE)).attempt(number)


_CHECKPOINT = re.compile(r"step-(\d{8,})")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the committed checkpoints in `folder`, newest first; their content is not checked."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))), reverse=True)


def rename_aside(path: Path, suffix: str) -> Path:
    """Rename a folder to `<name>.<suffix>` (`-2`, `-3`, ...), and return its new path."""
    target = path.with_name(f"{path.name}.{suffix}")
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{path.name}.{suffix}-{count}")
    os.rename(path, target)
    return target


_ID = "id-"


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _numbers(names: Sequence[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]
