"""Examine a node in a short job of one task."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.schedulers.doctor import probe
from jobs.schedulers.doctor.probe import ProbeFacts
from jobs.schedulers.doctor.run_probe import ProbeError, module_arguments, run_probe
from jobs.schedulers.inherited_variables import outside_job
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts
from jobs.schedulers.slurm.doctor.partitions import chosen_partitions
from jobs.schedulers.slurm.setup_lines import job_setup
from jobs.schedulers.slurm.site_profile import Profile

_QUEUE_S = 120
"""The job is withdrawn if no node is free within this time."""
_RUN_S = 90
_MEMORY = "1G"


def probe_node(facts: ClusterFacts, profile: Profile, runs: Path) -> ProbeFacts:
    """Facts of a node that Slurm chooses by the site profile. Raises `ProbeError`."""
    try:
        with probe.locked_folder(runs) as folder:
            command = probe_command(facts, profile, module_arguments(runs, folder))
            return run_probe(command, outside_job(os.environ), timeout_s=_QUEUE_S + _RUN_S)
    except OSError as error:
        raise ProbeError(f"{runs}: {error.strerror}") from None


def probe_command(facts: ClusterFacts, profile: Profile, arguments: list[str]) -> list[str]:
    """The srun of the job: one task, one processor, and one GPU where the partition has GPUs."""
    chosen = {
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "constraint": profile.constraint,
        "exclude": profile.exclude,
        "wckey": profile.wckey,
        **_gpu(facts, profile),
    }
    options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
    extra = [f"--{name}" + ("" if value is True else f"={value}") for name, value in profile.srun.items()]
    python = sys.executable if profile.container else profile.python or sys.executable
    script = "\n".join([*job_setup(profile), 'exec "$@"'])
    shape = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={_MEMORY}", "--time=5"]
    name = ["--job-name=doctor", f"--immediate={_QUEUE_S}", "--quiet"]
    return ["srun", *shape, *name, *options, *extra, "bash", "-c", script, "bash", python, *arguments]


def _gpu(facts: ClusterFacts, profile: Profile) -> dict[str, str]:
    nodes = [
        node
        for part in chosen_partitions(facts.partitions or (), profile)
        for node in facts.nodes_of(part.name)
    ]
    if profile.gpus == "none" or not any(node.gpu_count for node in nodes):
        return {}
    one = f"{profile.gpu_type}:1" if profile.gpu_type else "1"
    return {"gres": f"gpu:{one}"} if profile.gpus == "gres" else {profile.gpus: one}
