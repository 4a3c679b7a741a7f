"""The text of a batch script, from what a job needs. Pure functions."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.cluster import uses_gpus


@dataclass(frozen=True)
class Share:
    """One run of a batch, and the number of its submission."""

    run_dir: Path
    submission: int


@dataclass(frozen=True)
class Batch:
    """What is submitted at once: a job, or an array with a job for each of several runs of one shape."""

    name: str
    comment: str
    """By which its jobs are found again when their receipts were lost."""
    config: Mapping[str, Any]
    """Of any of the runs: they differ in nothing that the script says."""
    shares: Sequence[Share]
    logs: Path
    """Folder for what the batch shell and srun say."""
    code: Path
    """Folder of the code that runs."""
    python: str


def render(batch: Batch) -> str:
    """The script that `sbatch` gets."""
    resources, job = batch.config["resources"], batch.config["job"]
    ranks = resources["gpus_per_node"]  # of one node
    cpus = ranks * (resources["threads_per_rank"] + batch.config["data"]["workers"])
    log = batch.logs / ("%A_%a" if len(batch.shares) > 1 else "%j")
    options: dict[str, str | int | None] = {
        "job-name": batch.name,
        "comment": batch.comment,
        "nodes": resources["nodes"],
        "ntasks-per-node": 1,
        "cpus-per-task": cpus,
        "time": math.ceil(job["time_limit_min"]),
        "output": f"{log}.log",
        "open-mode": "append",
        "requeue": None,
        "signal": f"USR2@{math.ceil(job['stop_lead_s'])}",
    }
    if uses_gpus(resources["device"], "slurm", ranks * resources["nodes"]):
        options["gpus-per-node"] = ranks
    if len(batch.shares) > 1:
        options["array"] = f"0-{len(batch.shares) - 1}"
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items()]
    runs = " ".join(shlex.quote(str(share.run_dir)) for share in batch.shares)
    submissions = " ".join(str(share.submission) for share in batch.shares)
    lines += [
        "",
        f"export PYTHONPATH={shlex.quote(str(batch.code))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"runs=({runs})",
        f"submissions=({submissions})",
        "share=${SLURM_ARRAY_TASK_ID:-0}",
        f"srun --cpus-per-task={cpus} --kill-on-bad-exit=0 --wait=60 \\",  # srun of 22.05 needs to be told
        f'  {batch.python} -m jobs.slurm.task "${{runs[share]}}" --submission "${{submissions[share]}}"',
        "",
    ]
    return "\n".join(lines)
