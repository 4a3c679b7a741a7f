"""submitit's Slurm executor with a batch script of our own: sbatch, job id and files are submitit's."""

from __future__ import annotations

from pathlib import Path

import submitit


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits this script. It starts what it starts by itself: no job waits for a pickle."""

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder=folder, max_num_timeout=0)
        self._script = script

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script
