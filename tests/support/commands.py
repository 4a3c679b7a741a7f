"""Stand-ins for Slurm's commands."""

from __future__ import annotations

from pathlib import Path


class Commands:
    """A PATH that holds these commands and nothing else of Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> "{self.folder}/calls"\n{script}\n')
        path.chmod(0o755)

    def calls(self) -> str:
        return (self.folder / "calls").read_text()


def squeue(commands: Commands, *rows: str) -> None:
    """squeue lists these jobs: `id|state|start|reason`."""
    commands.add("squeue", "".join(f"echo '{row}|(null)'\n" for row in rows))


def sacct(commands: Commands, *rows: str) -> None:
    """sacct lists these rows of `record`."""
    commands.add("sacct", "".join(f"echo '{row}'\n" for row in rows))


def record(job_id: str, state: str, exit_code: str = "0:0", submitted: int = 100) -> str:
    return f"{job_id}|{state}|{exit_code}|{submitted}|110|120|10|billing=1,node=1"
