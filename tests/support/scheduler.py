"""An agent of a job whose scheduler is a folder of files:
`python -m tests.support.scheduler FOLDER RESTART RUN_DIR NODE_RANK NODES [after]`.

`facts.json` there is what the scheduler says of the job (silent without it). A requeue that it is asked for
adds a line to `requeues`, once `silent` is not there, unless `refuses` is. `lacks` says what its nodes lack;
their control groups are those below `machine`. `job_id` replaces the job id of the run's receipt.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from disttrain.records import process_limits
from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.node.agent import run_agent
from jobs.node.allocation import LOOPBACK, Allocation, AllocationFacts, NodeContext
from jobs.node.ending import close_abandoned
from tests.support.jobs import agent_environment


class FolderJob(Allocation):
    def __init__(self, folder: Path, restart: int, run: RunDir) -> None:
        self.folder = folder
        own = folder / "job_id"
        self.job_id = own.read_text() if own.exists() else submitted_id(run)
        self.restart = restart

    def facts(self) -> AllocationFacts | None:
        told = read_json_or_none(self.folder / "facts.json")
        return AllocationFacts(**told) if told else None

    def missing_gpus(self, record: Any) -> str | None:
        path = self.folder / "lacks"
        return path.read_text() if path.exists() else None

    def node_timeout_s(self) -> float:
        return 3.0

    def end_time(self) -> float | None:
        facts = self.facts()
        return facts.end if facts else None

    def kill_wait_s(self) -> float:
        return 3.0

    def requeue(self, until: float, is_current: Callable[[], bool]) -> bool:
        while (self.folder / "silent").exists():
            time.sleep(0.02)
        if not is_current():
            return False
        if (self.folder / "refuses").exists():
            return False
        with open(self.folder / "requeues", "a") as file:
            file.write(f"{self.restart}\n")
        return True

    def exclude(self, hosts: Sequence[str], formerly: Sequence[str], script: Path) -> None:
        write_json(self.folder / "excluded.json", {"hosts": list(hosts), "formerly": list(formerly)})

    def delay_start(self, delay_s: float) -> None:
        write_json(self.folder / "delay.json", {"delay_s": delay_s})


def submitted_id(run: RunDir) -> str:
    """Job id of the first submission."""
    return str((journal.entry(run, 0).read("receipt") or {"job_id": "42"})["job_id"])


class Scheduler:
    """What a test does with it."""

    def __init__(self, folder: Path, run: RunDir, nodes: int = 1) -> None:
        folder.mkdir()
        self.folder, self.run, self.nodes = folder, run, nodes

    def says(self, **facts: Any) -> None:
        told = AllocationFacts(**({"running": True, "restarts": 0, "end": None} | facts))
        write_json(self.folder / "facts.json", asdict(told))

    def start(self, restart: int = 0, node: int = 0, after_failure: bool = False) -> subprocess.Popen[str]:
        """Start the agent of a node, or the step that follows a failure of the agents."""
        command = [sys.executable, "-m", "tests.support.scheduler", str(self.folder), str(restart)]
        command += [str(self.run.path), str(node), str(self.nodes), *(["after"] if after_failure else [])]
        said = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, env=agent_environment(self.run), **said)

    def takes_back(self, node: subprocess.Popen[str]) -> None:
        """As Slurm does with the nodes of a job that it was asked to requeue."""
        self.says(running=False, restarts=1)
        node.send_signal(signal.SIGTERM)

    @property
    def job_id(self) -> str:
        return submitted_id(self.run)

    @property
    def requeues(self) -> list[str]:
        path = self.folder / "requeues"
        return path.read_text().split() if path.exists() else []

    def outcome(self) -> dict[str, Any]:
        path = self.run.done if self.run.done.exists() else self.run.failed
        return json.loads(path.read_text())


def main(folder: str, restart: str, run_dir: str, node: str, nodes: str, *after_failure: str) -> int:
    process_limits.ROOT = Path(folder) / "machine"
    run = RunDir(Path(run_dir))
    allocation = FolderJob(Path(folder), int(restart), run)
    context = NodeContext(run, 0, int(node), [LOOPBACK] * int(nodes), allocation)
    return close_abandoned(context) if after_failure else run_agent(context)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
