"""Changes between releases of Slurm that a cluster of this version and configuration has. Pure functions.

Source: release notes and source of Slurm 22.05 to 26.05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jobs.schedulers.doctor.diagnosis import Finding, Severity
from jobs.schedulers.slurm.capabilities import first_with, first_without
from jobs.schedulers.slurm.doctor.cluster_facts import Config, Partition
from jobs.schedulers.slurm.site_profile import Profile
from jobs.schedulers.slurm.version import NEWEST, SlurmVersion

OLDEST = SlurmVersion(22, 5)
"""Oldest release whose changes are listed here; `NEWEST` is the newest."""

NOTHING = "none for submit.py"


@dataclass(frozen=True)
class Release:
    """The cluster, as conditions of the changes see it."""

    version: SlurmVersion
    config: Config
    partitions: Sequence[Partition]
    profile: Profile


@dataclass(frozen=True)
class Change:
    """One change, in releases `since` up to but without `until`."""

    key: str
    since: SlurmVersion
    problem: str
    fix: str
    until: SlurmVersion | None = None
    applies: Callable[[Release], str | None] = lambda release: ""
    """Further evidence where the cluster has this trap; None where it has not."""
    severity: Severity = "note"


def _preempts_with_grace(release: Release) -> str | None:
    kind = release.config.text("PreemptType")
    if kind is None or kind.endswith("/none"):
        return None
    grace = next((part for part in release.partitions if part.grace_s), None)
    return None if grace is None else f"partition {grace.name} has GraceTime={grace.grace_s}"


def _orders_by_topology(release: Release) -> str | None:
    kind = release.config.text("TopologyPlugin") or ""
    return f"TopologyPlugin = {kind}" if kind.endswith(("/tree", "/block", "/3d_torus")) else None


def _several_topologies(release: Release) -> str | None:
    named = {part.name: part.text("Topology") for part in release.partitions if part.text("Topology")}
    return ", ".join(f"partition {name} has Topology={value}" for name, value in named.items()) or None


def _requeues_at_once(release: Release) -> str | None:
    flags = ("SlurmctldParameters", "SchedulerParameters")
    on = any(release.config.has_flag(name, "enable_expedited_requeue") for name in flags)
    return None if on else "enable_expedited_requeue is not in SlurmctldParameters"


def _binds_by_rank(release: Release) -> str | None:
    bind = str(release.profile.srun.get("cpu-bind", ""))
    return f"the site profile has srun.cpu-bind: {bind}" if "rank" in bind.split(",") else None


def _selects_linear(release: Release) -> str | None:
    linear = (release.config.text("SelectType") or "").endswith("/linear")
    return release.config.evidence("SelectType") if linear else None


CHANGES = (
    Change(
        "releases.cpus_per_task",
        SlurmVersion(22, 5),
        "srun does not inherit --cpus-per-task from sbatch: a task runs on one processor",
        f"{NOTHING}, whose scripts repeat the option for srun; do the same in scripts of your own",
        until=SlurmVersion(23, 11),
    ),
    Change(
        "releases.end_time",
        SlurmVersion(22, 5),
        "jobs have no SLURM_JOB_END_TIME",
        f"{NOTHING}, which reads the end from squeue; a script of your own needs a time limit of its own",
        until=first_with("job_end_time"),
    ),
    Change(
        "releases.grace_is_preemption",
        SlurmVersion(24, 5),
        "a job that ends by itself after the signal in GraceTime counts as PREEMPTED in squeue and sacct",
        f"{NOTHING}, which records the cause itself; in scripts of your own, do not count it as a failure",
        applies=_preempts_with_grace,
    ),
    Change(
        "releases.node_fail_exit_code",
        SlurmVersion(24, 11),
        "a job that lost a node (NODE_FAIL) has exit code 1, and had 0 before",
        f"{NOTHING}, which reads the state; scripts that compare exit codes count such a job as failed",
    ),
    Change(
        "releases.json_fields",
        SlurmVersion(24, 11),
        "the --json output of Slurm's commands lacks `exclusive` and `oversubscribe`",
        f"{NOTHING}, which reads named columns; scripts that parse --json have to do without them",
    ),
    Change(
        "releases.gpus_per_node_variable",
        first_with("gpus_before_gpus_per_node"),
        "srun ignores SLURM_GPUS_PER_NODE where --gpus is given",
        f"{NOTHING}; in scripts of your own, give srun --gpus-per-node itself",
    ),
    Change(
        "releases.cpu_bind_rank",
        first_without("cpu_bind_rank"),
        "srun has no --cpu-bind=rank: each step fails at its start",
        "remove it from the site profile, or set `srun: {cpu-bind: cores}`",
        applies=_binds_by_rank,
        severity="error",
    ),
    Change(
        "releases.linear_gpus_per_task",
        SlurmVersion(24, 11),
        "select/linear rejects --gpus-per-task",
        f"{NOTHING}, which requests GPUs for each node; change scripts of your own",
        applies=_selects_linear,
    ),
    Change(
        "releases.environment_hold",
        SlurmVersion(25, 5),
        "a job with --get-user-env whose environment cannot be retrieved is requeued and held, and waits "
        "until it is released",
        f"{NOTHING}, whose jobs retrieve none; free such a job by `scontrol release JOB`",
    ),
    Change(
        "releases.topologies",
        SlurmVersion(25, 5),
        "partitions have topologies of their own: options such as --switches and --segment mean different "
        "things in each",
        "compare runs of one partition alone (`scontrol show topology`)",
        applies=_several_topologies,
    ),
    Change(
        "releases.expedited_requeue",
        first_with("expedited_requeue"),
        "sbatch refuses --requeue=expedite on this cluster",
        f"{NOTHING}, whose jobs have --requeue; the administrator can set "
        "SlurmctldParameters=enable_expedited_requeue",
        applies=_requeues_at_once,
    ),
    Change(
        "releases.signal_exit_codes",
        SlurmVersion(25, 11),
        "sacct prints exit codes above 128 unchanged, and was 128 lower before",
        f"{NOTHING}; scripts that compare exit codes from sacct expect 137 for a process that SIGKILL ended",
    ),
    Change(
        "releases.step_order",
        first_with("topology_order"),
        "the nodes of a step are in the order of the topology: the first of `scontrol show hostnames` may "
        "not run task 0, and torchrun then waits for a rendezvous host that does not exist",
        f"{NOTHING}; in scripts of your own, take the rank from SLURM_NODEID or SLURM_PROCID, and let "
        "task 0 publish its address",
        applies=_orders_by_topology,
    ),
    Change(
        "releases.gpus_twice",
        first_without("gres_beside_gpus_per_node"),
        "Slurm rejects a job with --gres=gpu:N beside --gpus-per-node",
        f"{NOTHING}, which writes one of the two; keep one in scripts of your own",
    ),
    Change(
        "releases.cgroup_path",
        SlurmVersion(26, 5),
        "control groups of jobs are named by SLUID, not by job id",
        f"{NOTHING}, which reads /proc/self/cgroup; change scripts that look for job_ID in /sys/fs/cgroup",
    ),
)


def findings(config: Config, profile: Profile, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Findings for jobs in these partitions."""
    version = config.version
    if version is None:
        return
    evidence = f"Slurm {config.settings['slurm_version']}"
    if version < OLDEST:
        yield Finding(
            "warning",
            "releases.old",
            "this release is older than 22.05, the oldest that submit.py was tried with",
            "try `submit.py sweep --dry-run --test-only`; the administrator can upgrade Slurm",
            evidence,
        )
    elif version > NEWEST:
        yield Finding(
            "note",
            "releases.new",
            "this release is newer than 26.05, the newest whose changes are listed here",
            "read its release notes, and try `submit.py sweep --dry-run --test-only`",
            evidence,
        )
    release = Release(version, config, partitions, profile)
    for change in CHANGES:
        if change.since <= version and (change.until is None or version < change.until):
            more = change.applies(release)
            if more is not None:
                shown = ", ".join(filter(None, [evidence, more]))
                yield Finding(change.severity, change.key, change.problem, change.fix, shown)
