"""The batch log: the output of the batch script, of srun, and of agents that claimed no attempt."""

from __future__ import annotations

import re
from pathlib import Path

from disttrain.records.run_directory import RunDir

CONSEQUENCE = re.compile(
    r"^srun: (error: )?\S+: tasks? [\d,-]+: (Exited with|Terminated|Killed|exited abnormally)"
    r"|^srun: (Terminating|Force Terminated|Job step aborted|First task exited|forcing|got SIG|StepId=)"
    r"|^srun: (launch/slurm: )?_step_signal"
    r"|^srun: error: Timed out waiting for job step"
    r"|^(slurmstepd(-\S+)?|srun): error: \*\*\* (JOB|STEP) .* CANCELLED"
    r"|^slurmstepd(-\S+)?: error: (spank: |Failed to invoke spank)"
    r"|^slurmstepd(-\S+)?: error: pyxis: (couldn't start container|child \d+ failed)"
)
"""Lines by which srun, slurmstepd and pyxis report that a task ended. Its own last line has the reason."""


def folder(run: RunDir, *, in_array: bool) -> Path:
    """The folder of a job's batch log, which Slurm names by the job id.

    Logs of array tasks lie outside the runs, because a requeued job opens its log again.
    """
    return run.path.parent / ".arrays" if in_array else run.submissions
