"""Slurm executor of submitit that submits a given batch script, with a time limit for sbatch."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, JobPaths

SBATCH_TIMEOUT_S = 60.0
"""Time limit of one sbatch, in seconds: the submitter holds the sweep's lock meanwhile."""


class ScriptExecutor(submitit.SlurmExecutor):
    """Submits `script`, which starts the task itself and needs no pickle of submitit."""

    def __init__(self, folder: Path, script: str) -> None:
        super().__init__(folder=folder, max_num_timeout=0)
        self._script = script

    def _submit_command(self, command: str) -> submitit.Job[Any]:
        """The method of `submitit.core.core.PicklingExecutor`, with a time limit.

        Raises `FailedJobError` with the output of sbatch on stderr, and `subprocess.TimeoutExpired`.
        """
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        file = folder / f"{uuid.uuid4().hex}_submission.sh"
        file.write_text(self._script)
        try:
            done = subprocess.run(
                self._make_submission_command(file),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SBATCH_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise FailedJobError(done.stderr.strip())
            job_id = self._get_job_id_from_submission_command(done.stdout)
            job: submitit.Job[Any] = self.job_class(folder=self.folder, job_id=job_id, tasks=[0])
            job.paths.move_temporary_file(file, "submission_file")
            return job
        finally:
            file.unlink(missing_ok=True)
