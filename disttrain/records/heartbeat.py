"""Heartbeat of a rank: its position in training, rewritten every second in memory of its node.

The agent of the node reads the heartbeats to find a hang, without the shared file system. Times are readings
of CLOCK_MONOTONIC in seconds, which all processes of a node share. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.run_directory import Attempt

FOLDER_VARIABLE = "DISTTRAIN_NODE_FOLDER"
"""Environment variable with a folder in memory of the node, which the agent and its ranks share. Without it,
no agent watches the ranks."""
SCRIPT_TIMEOUT_VARIABLE = "DISTTRAIN_STEP_TIMEOUT_S"
"""Environment variable of a `command` with `job.script_step_timeout_s`. Without it, scripts are not
watched."""
INTERVAL_S = 1.0
_SAMPLED = "sampled-by-a-rank"

Phase = Literal["setup", "step", "checkpoint", "evaluation", "finish"]
"""Phases with a time limit each. `finish` has that of `setup`."""


@dataclass(frozen=True)
class Heartbeat:
    """Position of one rank."""

    rank: int
    pid: int
    phase: Phase
    step: int
    """Optimizer steps done."""
    since: float
    """Time at which the phase, or the current step, began, or at which the phase last made progress: a
    batch of a validation, or a part of a checkpoint."""
    limit_s: float
    """Seconds in the phase, or in one step, after which the rank counts as hung."""
    waiting: bool
    """Whether the rank is in a collective, where it may wait for other ranks."""
    where: str
    """Line that the main thread executes."""
    written: float
    """Time of this heartbeat. A process that is stopped, or a thread that holds the GIL, writes no more."""


def stop_request_path(folder: Path) -> Path:
    """The agent's request that the ranks save and stop: `cause`."""
    return folder / "stop.json"


def record_killed_probe(folder: Path, pid: int) -> None:
    """Record that the OOM killer ended a probe of `train.local_batch_size: auto`."""
    (folder / f"killed-probe-{pid}").touch()


def count_killed_probes(folder: Path) -> int:
    """Number of recorded probes of this node."""
    return sum(1 for _ in folder.glob("killed-probe-*"))


def samples_itself(folder: Path) -> bool:
    """Whether a rank of this node samples its hardware, so that the agent need not."""
    return (folder / _SAMPLED).exists()


def take_over_samples(attempt: Attempt, node: int) -> None:
    """End the samples that the agent takes of this node, and remove them: this process takes its own."""
    with contextlib.suppress(KeyError, OSError):  # without an agent, and at the second call
        (Path(os.environ[FOLDER_VARIABLE]) / _SAMPLED).touch(exist_ok=False)
        for path in (attempt.gpu_samples(node), attempt.host_samples(node)):
            path.unlink(missing_ok=True)


def heartbeat_path(folder: Path, rank: int) -> Path:
    """File of one rank's heartbeat."""
    return folder / f"heartbeat-{rank:05d}.json"


def write_heartbeat(folder: Path, heartbeat: Heartbeat) -> None:
    """Replace the heartbeat of a rank."""
    path = heartbeat_path(folder, heartbeat.rank)
    write_json(path, dataclasses.asdict(heartbeat), durable=False)


def read_heartbeats(folder: Path) -> list[Heartbeat]:
    """The newest heartbeat of each rank of this node, by rank. A rank without one is not watched."""
    found = [read_json_or_none(path) for path in sorted(folder.glob("heartbeat-*.json"))]
    return [Heartbeat(**values) for values in found if values is not None]
