"""The doctor of Slurm (`jobs.schedulers.interface.Doctor`): cluster, this host, and a node in a short job."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from jobs.checks.finding import Finding, Unchecked, examine
from jobs.checks.host_checks import FOLDER, PYTHON, REACH, SUBMITIT, node_findings, silent_folder
from jobs.checks.host_facts import (
    HostFacts,
    ProbeError,
    ProbeTimeout,
    locked_folder,
    module_arguments,
    probe,
    probe_here,
)
from jobs.fabric.detect import detect
from jobs.schedulers.inherited_variables import outside_job
from jobs.schedulers.interface import Diagnosis, ProfileSelection
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm.cluster_checks import cluster_findings, unchecked
from jobs.schedulers.slurm.cluster_conditions import Jobs
from jobs.schedulers.slurm.cluster_facts import ClusterFacts, Config, read_cluster
from jobs.schedulers.slurm.draft import profile_text
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.steps import job_setup

_SETTINGS = (
    "SelectType", "SelectTypeParameters", "ProctrackType", "TaskPlugin", "KillWait", "UnkillableStepTimeout",
    "PreemptType", "PreemptMode", "PreemptParameters", "SlurmctldParameters", "SchedulerParameters",
    "JobRequeue", "RequeueExit", "SlurmdTimeout", "MinJobAge", "MaxArraySize", "MaxJobCount", "AuthInfo",
    "AccountingStorageType", "AccountingStorageEnforce", "AccountingStorageTRES", "AccountingStoreFlags",
    "PropagateResourceLimits", "PropagateResourceLimitsExcept", "EnforcePartLimits", "TopologyPlugin",
    "MpiDefault", "SwitchType", "GresTypes",
)  # fmt: skip
_QUEUE_S = 120
"""The job is withdrawn if no node is free within this time."""
_RUN_S = 90
_CHOICES = ("partition", "account", "qos", "reservation", "constraint", "exclude", "wckey")
"""Keys of the profile that are options of srun."""


class SlurmDoctor:
    """Examines the cluster that Slurm's commands of this shell use."""

    def __init__(self, selection: ProfileSelection) -> None:
        """Raises `ConfigError` if the site profile cannot be read."""
        self._profile = resolve(selection)

    def diagnose(self, runs: Path, *, job: bool) -> Diagnosis:
        facts, profile = read_cluster(), self._profile
        findings: list[Finding] = []
        not_made: list[Unchecked] = []
        here: HostFacts | None = None
        try:
            here = probe_here(runs)
            by_profile = profile.python is not None or profile.container is not None
            rows = (*(() if by_profile else (*PYTHON, SUBMITIT)), *FOLDER, *REACH)
            findings += examine(rows, here, "this host")
        except ProbeTimeout as why:
            findings.append(silent_folder(runs, "this host", str(why)))
        except ProbeError as why:
            not_made.append(Unchecked("this host and the runs folder", str(why)))
        if facts.config is not None:
            findings += _refused_option(profile)
        findings += cluster_findings(facts, profile, here)
        if job and facts.config is not None:
            try:
                if here is None:
                    raise ProbeError("no job was started, as the probe of this host failed")
                node = _probe_node(facts, facts.config, profile, runs)
                if node.shares_folder:  # the node settles this question
                    findings = [finding for finding in findings if finding.key != "runs.not_shared"]
                findings += node_findings(here, node, time.time() - here.time, gpus=facts.has_gpus)
            except ProbeError as why:
                not_made.append(Unchecked("a node (--job)", str(why)))
        not_made += unchecked(facts, job=job)
        if profile.container is not None:
            not_made.append(Unchecked("Python in the container of the site profile", "run it on a node"))
        return Diagnosis(_subject(facts, profile), here, cluster_json(facts), findings, not_made)

    def draft_profile(self) -> str:
        facts = read_cluster()
        if facts.config is None:
            raise ConfigError(f"no Slurm controller answers ({facts.refusals.get('config')})")
        return profile_text(facts, detect(Path("/")))


DOCTOR = SlurmDoctor


def _refused_option(profile: Profile) -> list[Finding]:
    """The first option of the site profile that the installed Slurm refuses."""
    option = profile.refused_option()
    if option is None:
        return []
    problem = f"submit.py refuses {option[0]} of the site profile: {option[1]}"
    evidence = "`sbatch OPTION --version`"
    return [Finding("error", "profile.option", problem, "correct the option, or remove it", evidence)]


def _probe_node(facts: ClusterFacts, config: Config, profile: Profile, runs: Path) -> HostFacts:
    """Facts of a node that Slurm chooses by the site profile. Raises `ProbeError`."""
    has_gpus = any(node.gpu_count for node in Jobs(facts, config, profile, None).nodes)
    try:
        with locked_folder(runs) as folder:
            command = probe_command(profile, module_arguments(runs, folder), has_gpus=has_gpus)
            return probe(command, outside_job(os.environ), timeout_s=_QUEUE_S + _RUN_S)
    except OSError as error:
        raise ProbeError(f"{runs}: {error.strerror}") from None


def probe_command(profile: Profile, arguments: list[str], *, has_gpus: bool) -> list[str]:
    """The srun of a job of one task on one processor, with one GPU where the partition has GPUs."""
    chosen = {name: getattr(profile, name) for name in _CHOICES}
    if has_gpus and profile.gpus != "none":
        one = f"{profile.gpu_type}:1" if profile.gpu_type else "1"
        chosen |= {"gres": f"gpu:{one}"} if profile.gpus == "gres" else {profile.gpus: one}
    options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
    extra = [f"--{name}" + ("" if value is True else f"={value}") for name, value in profile.srun.items()]
    python = sys.executable if profile.container else profile.python or sys.executable
    script = "\n".join([*job_setup(profile), 'exec "$@"'])
    shape = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=1G", "--time=5"]
    name = ["--job-name=doctor", f"--immediate={_QUEUE_S}", "--quiet"]
    return ["srun", *shape, *name, *options, *extra, "bash", "-c", script, "bash", python, *arguments]


def _subject(facts: ClusterFacts, profile: Profile) -> str:
    if facts.config is None:
        return "Slurm, whose controller does not answer"
    nodes, settings = facts.nodes_of(), facts.config.values
    gpus = sum(node.gpu_count for node in nodes)
    names = ", ".join(part.name + "*" * part.is_default for part in facts.partitions or ()) or "unknown"
    release, cluster = settings.get("slurm_version", "?"), settings.get("clustername", "?")
    sizes = f"{len(nodes)} nodes, {gpus} GPUs" if facts.nodes is not None else "nodes unknown"
    return f"Slurm {release}, cluster {cluster}: {sizes}, partitions {names}; site profile {profile.name}"


def cluster_json(facts: ClusterFacts) -> dict[str, Any] | None:
    """Facts for `--json`."""
    if facts.config is None:
        return None
    settings = facts.config.values
    partitions = []
    for part in facts.partitions or ():
        nodes = facts.nodes_of(part.name)
        partitions.append(
            {
                "name": part.name,
                "default": part.is_default,
                "state": part.state,
                "max_minutes": part.max_minutes,
                "nodes": len(nodes),
                "usable_nodes": sum(node.usable for node in nodes),
                "gpus": sum(node.gpu_count for node in nodes),
                "gpu_types": sorted({name for node in nodes for name in node.gpu_types}),
            }
        )
    return {
        "name": settings.get("clustername"),
        "version": settings.get("slurm_version"),
        "settings": {name: settings.get(name.lower()) for name in _SETTINGS},
        "cgroup": dict(facts.config.cgroup),
        "partitions": partitions,
        "accounts": sorted(facts.accounts),
        "finished_jobs": facts.finished,
    }
