"""Slurm executor of submitit that submits a given batch script."""

from __future__ import annotations

from pathlib import Path

import submitit


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits `script`, which starts the task itself and needs no pickle of submitit."""

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder=folder, max_num_timeout=0)
        self._script = script

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script
