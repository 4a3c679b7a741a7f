"""The doctor of Slurm (`jobs.schedulers.interface.Doctor`): cluster, this host, and a node in a short job."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from disttrain.errors import ConfigError
from jobs import PROGRAM
from jobs.checks.finding import Finding, Unchecked, examine
from jobs.checks.host_checks import FOLDER, PYTHON, REACH, SUBMITIT, node_findings, silent_folder
from jobs.checks.host_facts import (
    PYTHON_VARIABLE,
    HostFacts,
    ProbeError,
    ProbeTimeout,
    locked_folder,
    module_arguments,
    probe,
    probe_here,
)
from jobs.checks.rank_python import RankContainer, find
from jobs.core.run_code import CODE_ROOT
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.detect import detect
from jobs.schedulers.inherited_variables import outside_job
from jobs.schedulers.interface import Diagnosis, ProfileSelection
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm import container
from jobs.schedulers.slurm.cluster_checks import CHECKS
from jobs.schedulers.slurm.facts import ClusterFacts, Config, Jobs, Node, Partition, QueuedJob, read_cluster
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.steps import job_setup
from jobs.schedulers.slurm.train_script import script_of_python

_SETTINGS = (
    "SelectType", "SelectTypeParameters", "ProctrackType", "TaskPlugin", "KillWait", "UnkillableStepTimeout",
    "PreemptType", "PreemptMode", "PreemptParameters", "SlurmctldParameters", "SchedulerParameters",
    "JobRequeue", "RequeueExit", "SlurmdTimeout", "MinJobAge", "MaxArraySize", "MaxJobCount", "AuthInfo",
    "AccountingStorageType", "AccountingStorageEnforce", "AccountingStorageTRES", "AccountingStoreFlags",
    "PropagateResourceLimits", "PropagateResourceLimitsExcept", "EnforcePartLimits", "TopologyPlugin",
    "MpiDefault", "SwitchType", "GresTypes",
)  # fmt: skip
_PARTS = {
    "partitions": "partitions: names, states, limits",
    "nodes": "nodes and GPUs",
    "queue": "length of the queue",
    "accounts": "accounts of this user",
    "clock": "clock of the controller",
}
_PLAIN = re.compile(r"[A-Za-z][\w.-]*")
_UNLOCK = 'ulimit -l unlimited || echo "only $(ulimit -l) KiB may be locked" >&2'
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"}
Line = tuple[str, str]
"""`key: value` of the profile, or empty, and its evidence."""
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
            here = replace(here, rank_python=None if profile.container else here.rank_python)
            rows = (*(() if profile.python else (*PYTHON, SUBMITIT)), *FOLDER, *REACH)
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
        if profile.container is not None and not job:
            not_made.append(Unchecked("Python in the container of the site profile", "use --job"))
        return Diagnosis(_subject(facts, profile), here, cluster_json(facts), findings, not_made)

    def draft_profile(self) -> str:
        facts = read_cluster()
        if facts.config is None:
            raise ConfigError(f"no Slurm controller answers ({facts.refusals.get('config')})")
        return profile_text(facts, detect(Path("/")))

    def draft_files(self, config: Mapping[str, Any]) -> tuple[str, str]:
        text = self.draft_profile()
        profile = Profile.model_validate({**yaml.safe_load(text), "name": "profile"})
        is_installed = Path(sysconfig.get_path("purelib")).resolve() == CODE_ROOT
        code = None if is_installed else CODE_ROOT
        return text, script_of_python(config, profile, sys.executable, code)


DOCTOR = SlurmDoctor


def _refused_option(profile: Profile) -> list[Finding]:
    """The first option of the site profile that the installed Slurm refuses."""
    option = profile.refused_option()
    if option is None:
        return []
    problem = f"disttrain refuses {option[0]} of the site profile: {option[1]}"
    evidence = "`sbatch OPTION --version`"
    return [Finding("error", "profile.option", problem, "correct the option, or remove it", evidence)]


def _probe_node(facts: ClusterFacts, config: Config, profile: Profile, runs: Path) -> HostFacts:
    """Facts of a node that Slurm chooses by the site profile. Raises `ProbeError`."""
    has_gpus = any(node.gpu_count for node in Jobs(facts, config, profile, None).nodes)
    environ = outside_job(os.environ)
    try:
        with locked_folder(runs) as folder:
            command = probe_command(profile, module_arguments(runs, folder), has_gpus=has_gpus)
            node = probe(command, environ, timeout_s=_QUEUE_S + _RUN_S)
    except OSError as error:
        raise ProbeError(f"{runs}: {error.strerror}") from None
    if profile.container is None:
        return node
    job = {"python": environ.get(PYTHON_VARIABLE)}
    image = RankContainer(image_command(profile, has_gpus=has_gpus))
    return replace(node, rank_python=find(job, environ, is_trainer=False, container=image).problem)


def probe_command(profile: Profile, arguments: list[str], *, has_gpus: bool) -> list[str]:
    """The srun of a job of one task on one processor, with one GPU where the partition has GPUs."""
    return [*_srun(profile, has_gpus), *_after_setup(profile), profile.python or sys.executable, *arguments]


def image_command(profile: Profile, *, has_gpus: bool) -> list[str]:
    """The same job, for a command in the container of the profile."""
    described, srun = profile.as_dict()["container"], _srun(profile, has_gpus)
    if described["kind"] == "pyxis":
        return [*srun, *container.of_pyxis(described, [CODE_ROOT])]
    return [*srun, *_after_setup(profile), "apptainer", *container.of_apptainer(described, [CODE_ROOT])]


def _after_setup(profile: Profile) -> list[str]:
    """The start of a command that follows the set-up of the job."""
    return ["bash", "-c", "\n".join([*job_setup(profile), 'exec "$@"']), "bash"]


def _srun(profile: Profile, has_gpus: bool) -> list[str]:
    chosen = {name: getattr(profile, name) for name in _CHOICES}
    if has_gpus and profile.gpus != "none":
        one = f"{profile.gpu_type}:1" if profile.gpu_type else "1"
        chosen |= {"gres": f"gpu:{one}"} if profile.gpus == "gres" else {profile.gpus: one}
    options = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
    extra = [f"--{name}" + ("" if value is True else f"={value}") for name, value in profile.srun.items()]
    shape = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=1G", "--time=5"]
    name = ["--job-name=doctor", f"--immediate={_QUEUE_S}", "--quiet"]
    return ["srun", *shape, *name, *options, *extra]


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


def cluster_findings(facts: ClusterFacts, profile: Profile, host: HostFacts | None) -> list[Finding]:
    """`host`: the submitting host, None where its probe failed."""
    if facts.config is not None:
        return examine(CHECKS, Jobs(facts, facts.config, profile, host))
    return [
        Finding(
            "error",
            "controller.silent",
            "Slurm is installed here, and its controller does not answer: no job can be submitted",
            "set SLURM_CONF or load the site's Slurm module, run this on a login node, or wait for the "
            "controller (`scontrol ping`); `--cluster local` uses this machine",
            facts.refusals.get("config", "no answer"),
        )
    ]


def unchecked(facts: ClusterFacts, *, job: bool) -> Iterator[Unchecked]:
    """Checks that could not be made. `job`: a node was examined, or the attempt failed and is listed."""
    config = facts.config
    if config is None:
        yield Unchecked("the cluster's configuration", facts.refusals.get("config", "no answer"))
        return
    for part, check in _PARTS.items():
        if part in facts.refusals:
            yield Unchecked(check, facts.refusals[part])
    if facts.finished == 0:
        reason = f"no job of {facts.user} ended within 7 days; run the doctor again after a job"
        yield Unchecked("accounting of a finished job", reason)
    if (config.text("ProctrackType") or "").endswith("/cgroup") and not config.cgroup:
        yield Unchecked("control groups", "`scontrol show config` has no section on them; read cgroup.conf")
    if (config.text("PreemptType") or "").endswith("/qos"):
        yield Unchecked("grace time of each QOS", "run `sacctmgr show qos format=Name,GraceTime,PreemptMode`")
    reason = f"run `{PROGRAM} sweep --dry-run --test-only`: Slurm says so itself"
    yield Unchecked("whether partition, account, QOS and GPU type of the site profile are admitted", reason)
    if not job:
        reason = f"needs a job: {PROGRAM} doctor --job"
        yield Unchecked("Python, limits, /dev/shm and clock of a node, and locks between hosts", reason)


def profile_text(facts: ClusterFacts, fabric: Fabric) -> str:
    """YAML of a profile, with the evidence for each line. `fabric` is that of the submitting host.

    Raises `ConfigError` without a usable partition.
    """
    assert facts.config is not None
    settings = facts.config.values
    part, why = choose_partition(facts)
    nodes = [node for node in facts.nodes_of(part.name) if node.gpu_count] or facts.nodes_of(part.name)
    jobs = [job for job in facts.queue or () if job.partition == part.name and job.gpus_per_node]
    types = Counter(name for node in nodes for name in node.gpu_types)
    wanted = Counter(job.gpu_type for job in jobs if job.gpu_type in types) or types
    gpu_type = wanted.most_common(1)[0][0] if len(types) > 1 else None
    if gpu_type is not None:
        nodes = [node for node in nodes if gpu_type in node.gpu_types]
    limit = "" if part.max_minutes is None else f"; job.time_limit_min may be {part.max_minutes} at most"
    lines = [
        (f"partition: {word(part.name)}", why + limit),
        *_account(facts, part),
        *_gpus(facts, nodes, gpu_type, types),
        *_share(part, nodes, jobs),
        _network(fabric),
    ]
    cluster = settings.get("clustername", "this cluster")
    head = [
        f"# Drafted by `disttrain doctor --write-profile` from {cluster}, Slurm "
        f"{settings.get('slurm_version', '?')}. Check each line.",
        f"description: {json.dumps(f'{cluster}: partition {part.name}')}",
    ]
    written = [text for line, evidence in lines for text in (f"# {evidence}", line) if text]
    return "\n".join([*head, *written]) + "\n"


def word(text: str) -> str:
    """A text as YAML: plain where YAML reads it as text, else in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)


def choose_partition(facts: ClusterFacts) -> tuple[Partition, str]:
    """The partition in which this user's jobs request most GPUs, else all jobs, else the default or largest
    one with GPUs; and the evidence.

    Raises `ConfigError` if no partition is up, or if Slurm did not list partitions or nodes.
    """
    for name, listed in (("partitions", facts.partitions), ("nodes", facts.nodes)):
        if listed is None:
            raise ConfigError(f"no profile without {name}: {facts.refusals.get(name, 'no answer')}")
    jobs = facts.queue or ()
    own = [job for job in jobs if job.user == facts.user]
    usable = [
        part
        for part in facts.partitions or ()
        if part.state == "UP"
        and (
            not facts.accounts
            or any(map(part.allows, facts.accounts))
            or part.name in {job.partition for job in own}
        )
        and any(node.usable for node in facts.nodes_of(part.name))
    ]
    if not usable:
        raise ConfigError("no partition of this cluster is up, has nodes and admits an account of this user")

    def score(part: Partition) -> tuple[int, int, bool, bool, int]:
        size = sum(node.gpu_count for node in facts.nodes_of(part.name))
        return _requested(own, part), _requested(jobs, part), size > 0, part.is_default, size

    chosen = max(usable, key=score)
    by_own, by_all, _, _, size = score(chosen)
    requested = f"squeue: running and pending jobs request {by_all} GPUs here, those of {facts.user} {by_own}"
    return chosen, f"{requested}; sinfo: {size} GPUs{'; the default partition' * chosen.is_default}"


def _requested(jobs: Sequence[QueuedJob], part: Partition) -> int:
    """GPUs that these jobs request in a partition."""
    return sum(job.nodes * job.gpus_per_node for job in jobs if job.partition == part.name)


def _account(facts: ClusterFacts, part: Partition) -> Iterator[Line]:
    """The account of the user's jobs in the partition, else one that the partition admits."""
    jobs = [job for job in facts.queue or () if job.user == facts.user]
    names = [job.account for job in jobs if job.account and job.partition == part.name]
    names += [job.account for job in jobs if job.account and part.allows(job.account)]
    if facts.user != "root":
        names += [*filter(part.allows, facts.accounts), *facts.accounts]
    if names:
        yield f"account: {word(names[0])}", f"squeue, sacctmgr: of {', '.join(dict.fromkeys(names))}"


def _gpus(
    facts: ClusterFacts, nodes: Sequence[Node], gpu_type: str | None, types: Counter[str]
) -> Iterator[Line]:
    if not any(node.gpu_count for node in nodes):
        yield "gpus: none", "sinfo: no node has GPUs among its generic resources"
        return
    select = (facts.config and facts.config.text("SelectType")) or "the default"
    style = "gpus-per-node" if select.endswith("cons_tres") else "gres"
    yield f"gpus: {style}", f"scontrol show config: SelectType is {select}"
    listed = ", ".join(f"{count} of {name}" for name, count in types.most_common())
    if gpu_type is not None:
        yield (
            f"gpu_type: {word(gpu_type)}",
            f"the most frequent in squeue, else in sinfo; nodes: {listed}",
        )
    least = min(node.gpu_count for node in nodes)
    yield f"gpus_per_node: {least}", f"sinfo: GPUs of a node{f'; nodes: {listed}' if listed else ''}"


def _share(part: Partition, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Iterator[Line]:
    """Whole nodes where the partition or the jobs of today use whole nodes."""
    cpus, memory = min(node.cpus for node in nodes), min(node.memory_mib for node in nodes)
    gpus = min(node.gpu_count for node in nodes)
    whole = [job for job in jobs if job.gpus_per_node >= gpus > 0]
    if not part.is_exclusive and 2 * len(whole) <= len(jobs):
        each = f", {cpus // gpus} processors and {memory // gpus} MiB for each of {gpus} GPUs" if gpus else ""
        yield "", f"sinfo: a node has {cpus} processors and {memory} MiB{each}. Set `memory` to a run's share"
        return
    evidence = f"OverSubscribe={part.sharing}; squeue: {len(whole)} of {len(jobs)} GPU jobs use whole nodes"
    yield "exclusive: true", evidence
    yield f"cpus_per_task: {cpus}", "sinfo: processors of a node"
    yield 'memory: "0"', f"all {memory} MiB of a node, which --exclusive does not grant"


def _network(fabric: Fabric) -> Line:
    """The network of this host. Each node detects its own, so that no variable is written."""
    rates = Counter(
        f"{each.rate_gbit_per_s:g} Gbit/s" for each in fabric.compute_adapters if each.rate_gbit_per_s
    )
    shown = ", ".join(f"{count} adapters of {rate}" for rate, count in rates.items()) or "no RDMA adapters"
    text = f"network of this host: {fabric.kind}, {shown}; nodes may differ (disttrain fabric explain)"
    if fabric.kind not in (FabricKind.INFINIBAND, FabricKind.ROCE, FabricKind.EFA):
        return "", text
    return f"setup: {json.dumps([_UNLOCK])}", f"{text}. Adapters need locked memory"
