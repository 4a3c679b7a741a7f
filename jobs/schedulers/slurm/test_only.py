"""Check a batch script without submitting it: `sbatch --test-only`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from jobs.schedulers.interface import ScriptCheck
from jobs.schedulers.slurm.commands import TIMEOUT_S
from jobs.schedulers.slurm.gres import with_remedy


def check_script(script: str, environment: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> ScriptCheck:
    """Whether sbatch would accept this script from this environment. Nothing is queued."""
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            capture_output=True,
            text=True,
            env=dict(environment),
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return ScriptCheck(False, f"sbatch cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return ScriptCheck(False, f"sbatch did not answer within {timeout_s:g} s")
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()]
    message = "; ".join(line.strip() for line in lines if line.strip())
    return ScriptCheck(done.returncode == 0, with_remedy(message))
