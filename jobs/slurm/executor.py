"""submitit's Slurm executor with a batch script of our own: sbatch, job id and files are submitit's."""

from __future__ import annotations

from pathlib import Path

import submitit

from disttrain.rundir import RunDir, write_text
from jobs.slurm.script import Batch, render


class BatchExecutor(submitit.SlurmExecutor):
    """Submits one `Batch`. The script starts `jobs.slurm.task` by itself: no job waits for a pickle."""

    def __init__(self, folder: Path, batch: Batch) -> None:
        super().__init__(folder=folder, max_num_timeout=0)
        self._batch = batch

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        text = render(self._batch)
        for share in self._batch.shares:
            write_text(RunDir(share.run_dir).script, text)
        return text
