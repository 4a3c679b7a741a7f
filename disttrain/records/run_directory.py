"""Paths of the files in a run directory. Standard library only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
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
SAVED_NAME = "saved"
"""Name of that file."""
STOP_SIGNAL = "DISTTRAIN_STOP_SIGNAL"
"""Environment variable of a `command`: name of the signal by which the agent asks its processes to stop."""

PROCESSORS = "DISTTRAIN_PROCESSORS"
"""Environment variable with the processors of all ranks of a node, `0-7,64-71`; empty without a binding."""
ADAPTERS = "DISTTRAIN_ADAPTERS"
"""Environment variable with the ports of adapters that NCCL should use on this node, `mlx5_0/1,mlx5_1/1`;
empty where it should use TCP."""


class _File:
    """A file or folder of a run or an attempt."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunDir | Attempt, kind: type) -> Path:
        return folder.path / self._name


class _NumberedFile(_File):
    """A file of each node or of each rank, by its number."""

    def __get__(self, folder: Attempt, kind: type) -> Callable[[int], Path]:  # type: ignore[override]
        return lambda number: folder.path / self._name.format(number)


@dataclass(frozen=True)
class Attempt:
    """Folder of one attempt: `attempts/000/`, `attempts/001/`, ..."""

    path: Path
    number: int
    directory_id: str | None = field(default=None, compare=False)
    """Id of the run directory in which the attempt began (`RunDir.identified`); None if unknown."""

    record = _File("attempt.json")
    rendezvous = _File("rendezvous.json")
    node_log = _NumberedFile("node-{:02d}.log")
    node_record = _NumberedFile("node-{:02d}.json")
    rank_log = _NumberedFile("rank-{:05d}.log")
    steps = _NumberedFile("steps-{:05d}.jsonl")
    gpu_samples = _NumberedFile("gpu-node{:02d}.jsonl")
    gpu_devices = _NumberedFile("gpu-node{:02d}.json")
    host_samples = _NumberedFile("host-node{:02d}.jsonl")
    hardware = _NumberedFile("hardware-node{:02d}.json")
    """Figures of the samples that the agent of a node takes of a command."""
    comm = _NumberedFile("comm-{:05d}.jsonl")
    """Collectives of the profiled steps."""
    trace = _NumberedFile("trace-{:05d}.json.gz")
    """The requested trace, as PyTorch's profiler exports it."""
    layers = _File("layers.json")
    """Times of each layer, if requested."""
    fabric = _File("fabric.json")
    """The network that the attempt used."""
    nccl_log = _NumberedFile("nccl-node{:02d}.log")
    """NCCL's log of the first rank of a node; absent without NCCL."""
    preflight = _File("preflight.json")
    """Verdict on the nodes before the ranks start."""
    preflight_folder = _File("preflight")
    """Folder of the facts that each node writes for the pre-flight, so that a short listing shows all."""
    preflight_facts = _NumberedFile("preflight/node-{:02d}.json")
    error = _NumberedFile("error-{:05d}.json")
    stop = _File("stop.json")
    """A stop request received by a node's agent: `cause`, `time` and the signal."""
    exits = _File("exits")
    """Folder of empty files, whose names fit on a full disk, so that one short listing shows all of them:
    `node-NN.code-C`, the exit of a node's torchrun, and `unrecorded.CAUSE.ERRNO`, an end without a record."""
    node_oom = _NumberedFile("node-{:02d}.oom.json")
    """Number of processes that the OOM killer ended on a node; absent if there were none."""
    node_unconnected = _NumberedFile("node-{:02d}.unconnected.json")
    """Number of a command's processes on a node; absent if one had a connection to another process."""
    node_ranks = _NumberedFile("node-{:02d}.ranks.json")
    """Positions of a node's ranks before its agent ended them; absent if they ended by themselves."""
    stack = _NumberedFile("stack-{:05d}.txt")
    """Stacks of a rank's threads, before the agents ended a command that hung."""
    rank_works = _File("rank-works")
    """Touched while a rank of a command prints or works, so that others may wait for it: they do not hang."""
    nccl_trace = _File("nccl-trace-")
    """Start of the names of NCCL's flight recorder, which end in the rank."""
    checkpoint_warning = _File("checkpoint-warning.json")
    """A checkpoint that cannot be restored: `message`. Removed once a later one was read back."""
    hang_warning = _File("hang-warning.json")
    """A hang that its node's agent will end soon: `message`, `ends_at`. Removed if training goes on."""

    @property
    def tensorboard(self) -> Path:
        """A subfolder of the run's `tensorboard/`, so that TensorBoard shows all attempts together."""
        return RunDir(self.path.parent.parent).tensorboard / self.path.name

    def superseded(self, names: Sequence[str] | None = None) -> str | None:
        """Reason for which this attempt must not write shared files; None if it may write them.

        A job presumed dead may resume on a node that was frozen, beside its replacement. One listing of the
        folder of the attempts, `names` if given, finds both a newer attempt and a run directory that was
        replaced.
        """
        names = _names(self.path.parent) if names is None else names
        if self.is_replaced(names):
            return "the run directory was moved away or deleted"
        newest = max(_numbers(names), default=self.number)
        return f"attempt {newest} of this run has begun" if newest > self.number else None

    def is_replaced(self, names: Sequence[str] | None = None) -> bool:
        """Whether the run directory was moved away or deleted since this attempt began.

        Another run of the same name may be at its path, so that this attempt must write no file there.
        """
        names = _names(self.path.parent) if names is None else names
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

    run_json = _File("run.json")
    script = _File("submit.sbatch")
    """The batch script of the last submission to Slurm."""
    env_json = _File("env.json")
    metrics = _File("metrics.json")
    comm_bench = _File("comm-bench.json")
    """Result of `python -m disttrain.comm_bench`."""
    fabric_ab = _File("fabric-ab.json")
    """Result of `python -m jobs.arms`."""
    progress = _File("progress.json")
    """Live state of the run, rewritten by rank 0: step, samples per second, loss."""
    usage = _File("usage.json")
    """GPU-hours by Slurm's accounting."""
    submissions = _File("submissions")
    """The submission journal: one entry per submission (see `jobs.core.journal`)."""
    done = _File("DONE")
    failed = _File("FAILED")
    stop = _File("STOP")
    tensorboard = _File("tensorboard")
    checkpoints = _File("checkpoints")

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
