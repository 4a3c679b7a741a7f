"""Findings on the isolation of jobs: processors, GPUs, memory, limits, ports. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.fabric.description import ENOUGH_LOCKED_BYTES
from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.doctor.probe import HostFacts
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config
from jobs.schedulers.slurm.site_profile import Profile


def findings(
    facts: ClusterFacts, config: Config, profile: Profile, exclusive: bool, host: HostFacts | None
) -> Iterator[Finding]:
    """`exclusive`: no job shares its nodes. `host`: the submitting host."""
    if not exclusive:
        yield from _shared_nodes(facts, config)
    sets_limit = any("ulimit -l" in line for line in (*profile.setup, *profile.node_setup))
    if host is not None and facts.has_gpus and not sets_limit:
        yield from _locked_memory(config, host)
    yield from _clocks_of_devices(config)
    yield from _site(config)


def _shared_nodes(facts: ClusterFacts, config: Config) -> Iterator[Finding]:
    """Findings that matter where jobs share nodes."""
    plugins = {name.removeprefix("task/") for name in config.flags("TaskPlugin")}
    confined = "cgroup" in plugins and config.is_yes("ConstrainCores") is True
    if not confined and "affinity" not in plugins:
        yield Finding(
            "warning",
            "isolation.processors",
            "Slurm confines no job to its processors: jobs on one node slow each other, and timings vary",
            "set `exclusive: true` in the site profile for measurements; the administrator can set "
            "TaskPlugin=task/affinity,task/cgroup and ConstrainCores=yes",
            f"{config.evidence('TaskPlugin')}, {config.evidence('ConstrainCores')}",
        )
    if facts.has_gpus and not ("cgroup" in plugins and config.is_yes("ConstrainDevices")):
        yield Finding(
            "warning",
            "isolation.devices",
            "Slurm confines no job to its GPUs: a program that ignores CUDA_VISIBLE_DEVICES uses those of "
            "other jobs",
            "set `exclusive: true` in the site profile; the administrator can set ConstrainDevices=yes",
            f"{config.evidence('TaskPlugin')}, {config.evidence('ConstrainDevices')}",
        )
    if not ("cgroup" in plugins and config.is_yes("ConstrainRAMSpace")):
        yield Finding(
            "note",
            "isolation.memory",
            "Slurm limits no job to its memory: a run out of memory may end processes of other jobs, and its "
            "cause may read `killed` instead of `out_of_memory`",
            "set `exclusive: true` in the site profile; the administrator can set ConstrainRAMSpace=yes",
            f"{config.evidence('TaskPlugin')}, {config.evidence('ConstrainRAMSpace')}",
        )


def _locked_memory(config: Config, host: HostFacts) -> Iterator[Finding]:
    """The limit of the submitting shell is that of the ranks where Slurm propagates it."""
    kept = config.flags("PropagateResourceLimitsExcept")
    sent = config.settings.get("propagateresourcelimits", "ALL").upper().split(",")
    propagated = not {"memlock", "all"} & {*kept} if kept else bool({"MEMLOCK", "ALL"} & {*sent})
    limit = host.locked_memory
    if propagated and limit is not None and limit < ENOUGH_LOCKED_BYTES:
        yield Finding(
            "warning",
            "isolation.locked_memory",
            f"jobs inherit this shell's limit of locked memory, {limit // 1024} KiB: InfiniBand, RoCE and "
            "EFA cannot register buffers, and NCCL fails or falls back to TCP",
            "set `setup: ulimit -l unlimited` in the site profile (as profile `infiniband` does); the "
            "administrator can set PropagateResourceLimitsExcept=MEMLOCK",
            f"ulimit -l: {limit // 1024}, {config.evidence('PropagateResourceLimits')}, "
            f"{config.evidence('PropagateResourceLimitsExcept')}",
        )


def _clocks_of_devices(config: Config) -> Iterator[Finding]:
    if not (config.text("GpuFreqDef") or "high").startswith("high"):
        yield Finding(
            "warning",
            "isolation.gpu_clock",
            "Slurm sets the clock of GPUs in every job: throughput is that of this clock",
            "set `srun: {gpu-freq: high}` in the site profile, or note the clock beside results",
            config.evidence("GpuFreqDef"),
        )


def _site(config: Config) -> Iterator[Finding]:
    """Plugins and ranges that change jobs of scripts of your own, or of this site."""
    for name, problem, fix in (
        (
            "SrunPortRange",
            "srun is limited to these ports: a firewall between login node and nodes is likely, and may "
            "block other ports between nodes as well",
            "none if runs start; else the administrator opens all ports between nodes",
        ),
        (
            "JobSubmitPlugins",
            "the site checks or changes each job at its submission",
            "`submit.py sweep --dry-run --test-only` prints refusals; `scontrol show job` shows changes",
        ),
        (
            "JobContainerType",
            "each job has its own /tmp (and /dev/shm), which ends with the job",
            "keep runs and data on the shared file system",
        ),
    ):
        if not (config.text(name) or "none").endswith(("none", "0-0")):
            yield Finding("note", f"isolation.{name.lower()}", problem, fix, config.evidence(name))
    default = config.text("MpiDefault")
    if default is not None and default != "none":
        yield Finding(
            "note",
            "isolation.mpi",
            f"srun starts {default} for each task, which torchrun does not use and which may fail in a "
            "container",
            "set `srun: {mpi: none}` in the site profile if a step fails at its start",
            config.evidence("MpiDefault"),
        )
