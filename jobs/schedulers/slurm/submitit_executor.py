"""Slurm executor of submitit that submits a given batch script, with a time limit for sbatch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError

SBATCH_TIMEOUT_S = 60.0
"""Time limit of one sbatch, in seconds: the submitter holds the sweep's lock meanwhile."""


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits the batch script at `script`, which starts the task itself and needs no pickle of submitit.

    submitit writes its pickle to `folder`. It replaces patterns such as `%j` in the path of this folder.
    """

    def __init__(self, folder: Path, script: Path) -> None:
        super().__init__(folder=folder, max_num_timeout=0)
        self._script = script

    def _submit_command(self, command: str) -> submitit.Job[Any]:
        """The method of `submitit.core.core.PicklingExecutor`, with a time limit.

        Raises `FailedJobError` with the output of sbatch on stderr, and `subprocess.TimeoutExpired`.
        """
        done = subprocess.run(
            self._make_submission_command(self._script),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SBATCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise FailedJobError(done.stderr.strip())
        job_id = self._get_job_id_from_submission_command(done.stdout)
        return self.job_class(folder=self.folder, job_id=job_id, tasks=[0])
