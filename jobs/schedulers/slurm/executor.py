"""The executor of submitit that places our batch scripts, which start torchrun on the nodes of a job."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError

SBATCH_TIMEOUT_S = 60.0
"""Time limit of one sbatch, in seconds: the submitter holds the sweep's lock meanwhile."""


class TorchrunExecutor(submitit.SlurmExecutor):
    """Places a batch script as it stands.

    `submit` of submitit pickles a function, and renames the pickle after sbatch has returned: a submitter
    that is killed in between leaves a job that cannot find its function. Our script names its run, so nothing
    is written after sbatch.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder, max_num_timeout=0)

    def place(self, script: Path) -> submitit.Job[Any]:
        """Hand a script to sbatch, once.

        Raises `FailedJobError` with the output of sbatch on stderr, and `subprocess.TimeoutExpired`.
        """
        done = subprocess.run(
            self._make_submission_command(script.absolute()),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SBATCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise FailedJobError(done.stderr.strip())
        return self.job_class(self.folder, self._get_job_id_from_submission_command(done.stdout))
