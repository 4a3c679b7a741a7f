"""Stand-ins for Slurm's commands."""

from __future__ import annotations

from pathlib import Path


class Commands:
    """A PATH that holds these commands and nothing else of Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.folder}/calls\n{script}\n')
        path.chmod(0o755)

    def calls(self) -> str:
        return (self.folder / "calls").read_text()
