"""The doctor of Slurm (`jobs.schedulers.doctor.diagnosis.Doctor`)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from disttrain.errors import ConfigError
from jobs.fabric.detect import detect
from jobs.schedulers.base import ProfileSelection
from jobs.schedulers.doctor.diagnosis import Diagnosis, Finding, Unchecked, worst_first
from jobs.schedulers.doctor.folder_checks import folder_findings, silent_folder
from jobs.schedulers.doctor.host_checks import python_findings
from jobs.schedulers.doctor.node_checks import node_findings
from jobs.schedulers.doctor.probe import ProbeFacts, as_json
from jobs.schedulers.doctor.run_probe import ProbeError, ProbeTimeout, probe_here
from jobs.schedulers.slurm import profile_selection
from jobs.schedulers.slurm.doctor import cluster_checks, collect, draft, node_probe
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts
from jobs.schedulers.slurm.profile_options import check_options
from jobs.schedulers.slurm.site_profile import Profile
from jobs.schedulers.slurm.version import installed_slurm

_SETTINGS = (
    "SelectType", "SelectTypeParameters", "ProctrackType", "TaskPlugin", "KillWait", "UnkillableStepTimeout",
    "PreemptType", "PreemptMode", "PreemptParameters", "SlurmctldParameters", "SchedulerParameters",
    "JobRequeue", "RequeueExit", "SlurmdTimeout", "MinJobAge", "MaxArraySize", "MaxJobCount", "AuthInfo",
    "AccountingStorageType", "AccountingStorageEnforce", "AccountingStorageTRES", "AccountingStoreFlags",
    "PropagateResourceLimits", "PropagateResourceLimitsExcept", "EnforcePartLimits", "TopologyPlugin",
    "MpiDefault", "SwitchType", "GresTypes",
)  # fmt: skip


class SlurmDoctor:
    """Examines the cluster that Slurm's commands of this shell use."""

    def __init__(self, selection: ProfileSelection) -> None:
        """Raises `ConfigError` if the site profile cannot be read."""
        self._profile = profile_selection.resolve(selection)

    def diagnose(self, runs: Path, *, job: bool) -> Diagnosis:
        facts = collect.cluster_facts()
        findings: list[Finding] = []
        unchecked: list[Unchecked] = []
        here: ProbeFacts | None = None
        try:
            here = probe_here(runs)
            if self._profile.python is None and self._profile.container is None:
                findings += python_findings(here.host, "this host", needs_submitit=True)
            findings += folder_findings(here.folder, "this host", several_hosts=True)
        except ProbeTimeout as why:
            findings.append(silent_folder(runs, "this host", str(why)))
        except ProbeError as why:
            unchecked.append(Unchecked("this host and the runs folder", str(why)))
        findings += _refused_option(self._profile) if facts.config is not None else []
        findings += cluster_checks.cluster_findings(facts, self._profile, here.host if here else None)
        if job and facts.config is not None:
            self._examine_node(facts, runs, here, findings, unchecked)
        unchecked += cluster_checks.unchecked(facts, job=job)
        if self._profile.container is not None:
            unchecked.append(Unchecked("Python in the container of the site profile", "run it on a node"))
        return Diagnosis(
            _subject(facts, self._profile), facts_json(facts, here), worst_first(findings), tuple(unchecked)
        )

    def _examine_node(
        self,
        facts: ClusterFacts,
        runs: Path,
        here: ProbeFacts | None,
        findings: list[Finding],
        unchecked: list[Unchecked],
    ) -> None:
        if here is None:
            unchecked.append(
                Unchecked("a node (--job)", "no job was started, as the probe of this host failed")
            )
            return
        try:
            node = node_probe.probe_node(facts, self._profile, runs)
        except ProbeError as why:
            unchecked.append(Unchecked("a node (--job)", str(why)))
            return
        elapsed_s = time.time() - here.host.time
        shared = {finding.key for finding in findings if finding.key == "runs.not_shared"}
        if shared and node.shared is not None and node.shared.seen:  # the node settles this question
            findings[:] = [finding for finding in findings if finding.key not in shared]
        findings += node_findings(here, node, elapsed_s, gpus=facts.has_gpus)

    def draft_profile(self, name: str) -> str:
        facts = collect.cluster_facts()
        if facts.config is None:
            raise ConfigError(f"no Slurm controller answers ({facts.refusals.get('config')})")
        text = draft.profile_text(facts, detect(Path("/")))
        try:
            Profile.model_validate({**yaml.safe_load(text), "name": name})
        except ValidationError as error:
            detail = error.errors()[0]
            place = ".".join(map(str, detail["loc"]))
            raise ConfigError(f"the drafted profile is invalid at {place}: {detail['msg']}") from None
        return text


def _refused_option(profile: Profile) -> list[Finding]:
    """The first option of the site profile that the installed Slurm refuses."""
    found = None
    if profile_selection.depends_on_version(profile):
        found = check_options(profile, installed_slurm())
    return (
        []
        if found is None
        else [
            Finding(
                "error",
                "profile.option",
                f"submit.py refuses {found[0]} of the site profile: {found[1]}",
                "correct the option, or remove it",
                "`sbatch --version`, `sbatch --help`",
            )
        ]
    )


def _subject(facts: ClusterFacts, profile: Profile) -> str:
    config = facts.config
    if config is None:
        return "Slurm, whose controller does not answer"
    nodes = facts.nodes_of()
    gpus = sum(node.gpu_count for node in nodes)
    names = ", ".join(part.name + "*" * part.is_default for part in facts.partitions or ()) or "unknown"
    release, cluster = config.settings.get("slurm_version", "?"), config.settings.get("clustername", "?")
    sizes = f"{len(nodes)} nodes, {gpus} GPUs" if facts.nodes is not None else "nodes unknown"
    return f"Slurm {release}, cluster {cluster}: {sizes}, partitions {names}; site profile {profile.name}"


def facts_json(facts: ClusterFacts, here: ProbeFacts | None) -> dict[str, Any]:
    """Facts for `--json`."""
    found, config = as_json(here), facts.config
    if config is None:
        return {**found, "cluster": None}
    partitions = [
        {
            "name": part.name,
            "default": part.is_default,
            "state": part.state,
            "max_minutes": part.max_minutes,
            "nodes": len(facts.nodes_of(part.name)),
            "usable_nodes": sum(node.usable for node in facts.nodes_of(part.name)),
            "gpus": sum(node.gpu_count for node in facts.nodes_of(part.name)),
            "gpu_types": sorted(
                {each.type for node in facts.nodes_of(part.name) for each in node.gpus if each.type}
            ),
        }
        for part in facts.partitions or ()
    ]
    cluster = {
        "name": config.settings.get("clustername"),
        "version": config.settings.get("slurm_version"),
        "settings": {name: config.settings.get(name.lower()) for name in _SETTINGS},
        "cgroup": dict(config.cgroup),
        "partitions": partitions,
        "accounts": sorted({row.account for row in facts.associations or ()}),
        "finished_jobs": None if facts.finished is None else len(facts.finished),
    }
    return {**found, "cluster": cluster}
