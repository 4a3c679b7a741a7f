"""Rows about a Slurm cluster, for jobs with the options of one site profile. Pure.

A refusal that `sbatch --test-only` gives has no row: `submit.py sweep --dry-run --test-only` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobs.checks.finding import Check, Finding, Unchecked, examine
from jobs.checks.host_checks import apart
from jobs.checks.host_facts import HostFacts
from jobs.schedulers.slurm.cluster_conditions import (
    Jobs,
    between,
    cancels,
    differs,
    exit_codes,
    full_queue,
    lacks_gpus_per_node,
    little_locked_memory,
    lost_nodes,
    memory_for_processors,
    mixed_gpus,
    no_grace,
    of_partitions,
    setting,
    short_limit,
    slices,
    tracks_by,
)
from jobs.schedulers.slurm.cluster_facts import ClusterFacts
from jobs.schedulers.slurm.profile import Profile

_PARTS = {
    "partitions": "partitions: names, states, limits",
    "nodes": "nodes and GPUs",
    "queue": "length of the queue",
    "accounts": "accounts of this user",
    "clock": "clock of the controller",
}
_WHOLE_NODES = "set `exclusive: true` in the site profile for measurements"

CHECKS: tuple[Check[Jobs], ...] = (
    Check(
        "partitions.state",
        "error",
        of_partitions(lambda jobs, part: f"State={part.state}" if part.state != "UP" else ""),
        "the partition of the site profile starts no jobs ({evidence})",
        "name another partition, or wait for the end of a maintenance (`scontrol show reservation`)",
    ),
    Check(
        "partitions.max_time",
        "warning",
        of_partitions(short_limit),
        "the partition's time limit is less than the default of job.time_limit_min: Slurm refuses such a "
        "job or leaves it pending",
        "train with --set job.time_limit_min=MIN; runs continue from checkpoints after a requeue",
    ),
    Check(
        "partitions.lost_nodes",
        "note",
        lost_nodes,
        "some nodes of the partition run no jobs",
        "`sinfo -R` lists the reasons",
    ),
    Check(
        "partitions.oversubscribe",
        "warning",
        of_partitions(
            lambda jobs, part: (
                f"OverSubscribe={part.sharing}" if re.fullmatch("FORCE(?!:1$).*", part.sharing) else ""
            )
        ),
        "several jobs run on the same processors: timings depend on the others",
        "for measurements name another partition: `--slurm partition=NAME`",
    ),
    Check(
        "partitions.shared_nodes",
        "note",
        of_partitions(
            lambda jobs, part: (
                f"OverSubscribe={part.sharing}" if jobs.share_nodes and not part.is_exclusive else ""
            )
        ),
        "other jobs may share the nodes: memory bandwidth, links and loader processes then disturb timings",
        "set `exclusive: true` and `memory: 0` in the site profile for measurements",
    ),
    Check(
        "partitions.memory",
        "note",
        of_partitions(memory_for_processors),
        "a job without a memory request has a share for each processor, which is little for GPUs with few "
        "processors each",
        "set `memory` in the site profile: to 0 (all of a node) with `exclusive: true`, else to a size such "
        "as 64G",
    ),
    Check(
        "gpus.mixed",
        "warning",
        mixed_gpus,
        "the partition has GPUs of several types, and a job may get any: runs are not comparable",
        "set `gpu_type` in the site profile to one of them",
    ),
    Check(
        "gpus.mig",
        "warning",
        slices,
        "some GPUs are MIG slices: NCCL connects no two slices of one GPU, and their speed is a fraction",
        "set `gpu_type` to a whole GPU, or run one rank on each node",
    ),
    Check(
        "gpus.option",
        "warning",
        setting("SelectType", holds=lacks_gpus_per_node),
        "--gpus-per-node needs select/cons_tres",
        "set `gpus: gres` in the site profile",
    ),
    Check(
        "limits.wckey",
        "warning",
        setting(
            "AccountingStorageEnforce",
            holds=lambda jobs: (
                "wckeys" in jobs.config.flags("AccountingStorageEnforce") and jobs.profile.wckey is None
            ),
        ),
        "Slurm requires a workload characterization key, and the site profile has none",
        "`sacctmgr show wckey user=$USER` lists yours; set `wckey` in the site profile",
    ),
    Check(
        "limits.job_count",
        "warning",
        full_queue,
        "the queue is nearly full: {evidence}",
        "submit.py defers the runs above the limit; repeat the command later",
    ),
    Check(
        "limits.job_age",
        "warning",
        between("MinJobAge", 0, 60, lambda jobs: not jobs.config.has_accounting),
        "Slurm soon forgets a job, and there is no accounting: how a job ended that could not record its "
        "end remains unknown",
        "the administrator sets MinJobAge=300, or starts slurmdbd",
    ),
    Check(
        "limits.private_jobs",
        "note",
        setting("PrivateData", holds=lambda jobs: "jobs" in jobs.config.flags("PrivateData")),
        "squeue lists your own jobs alone: `status` on the runs of another user cannot ask for their jobs",
        "let their owner run `submit.py status`",
    ),
    Check(
        "requeues.exit_codes",
        "error",
        exit_codes,
        "Slurm requeues or holds every job that ends with an exit code that jobs of submit.py use for other "
        "meanings (0, 1, 69, 75, 93): finished or refused runs would start again",
        "the administrator removes these codes",
    ),
    Check(
        "requeues.held",
        "note",
        setting(
            "SchedulerParameters",
            holds=lambda jobs: re.search(
                r"max_batch_requeue=[0-4]\b", jobs.config.text("SchedulerParameters") or ""
            ),
        ),
        "Slurm holds a job whose start failed a few times, as after a failed prolog",
        "free it by `scontrol release JOB`, and exclude the node (`--slurm exclude=NODE`)",
    ),
    Check(
        "requeues.lost_node",
        "warning",
        between("SlurmdTimeout", 0, 1),
        "Slurm never marks a silent node as down, so the job of a lost node is not requeued",
        "cancel such a run and `submit.py resume` it; the administrator can set SlurmdTimeout=300",
    ),
    Check(
        "signals.proctrack",
        "warning",
        tracks_by("pgid"),
        "Slurm tracks a step by its process group, and torchrun starts each rank in a session of its own: "
        "ranks may outlive their job and hold its GPUs",
        "the administrator sets ProctrackType=proctrack/cgroup; meanwhile look for left processes by `pgrep "
        "-u $USER` on a node that reports busy GPUs",
    ),
    Check(
        "signals.proctrack",
        "note",
        tracks_by("linuxproc"),
        "Slurm tracks processes by their parents: a rank whose parents died escapes, and a signal to the "
        "batch shell reaches srun as well",
        "end runs by `submit.py cancel --graceful`, not by `scancel --full`; the administrator can set "
        "ProctrackType=proctrack/cgroup",
    ),
    Check(
        "signals.no_grace",
        "warning",
        of_partitions(no_grace),
        "pre-emption comes without a warning: Slurm sends no signal before it requeues the job, and steps "
        "after the last checkpoint are lost unless a save fits into KillWait",
        "set checkpoint.every_s to the work that may be lost; the administrator can set GraceTime of the "
        "partition",
    ),
    Check(
        "signals.preempt_cancel",
        "warning",
        of_partitions(cancels),
        "pre-emption cancels jobs and does not requeue them",
        "`submit.py resume` continues such runs from their newest checkpoint",
    ),
    Check(
        "signals.kill_wait",
        "warning",
        between("KillWait", 0, 15),
        "ranks have little time to save between SIGTERM and SIGKILL, at scancel and at a pre-emption "
        "without grace",
        "save often (`--set checkpoint.every_s=600`), and end runs by `submit.py cancel --graceful`; the "
        "administrator can raise KillWait to 30 s",
    ),
    Check(
        "signals.unkillable",
        "note",
        between("UnkillableStepTimeout", 1, 120),
        "a rank that waits for the file system so long after SIGKILL drains its node (`Kill task failed`)",
        "the administrator raises UnkillableStepTimeout to 180 s where checkpoints go to a busy file system",
    ),
    Check(
        "accounting.none",
        "warning",
        setting("AccountingStorageType", holds=lambda jobs: not jobs.config.has_accounting),
        "the cluster has no accounting: GPU-hours of jobs that could not record their end are missing, and "
        "Slurm forgets how a job ended after MinJobAge",
        "the administrator starts slurmdbd; run directories alone give states and times until then",
    ),
    Check(
        "accounting.unreachable",
        "warning",
        lambda jobs: jobs.facts.refusals.get("finished", ""),
        "accounting does not answer: `status --long` has no GPU-hours until it does",
        "repeat later; if it stays, the administrator looks at slurmdbd",
    ),
    Check(
        "accounting.gpus",
        "warning",
        setting(
            "AccountingStorageTRES",
            holds=lambda jobs: (
                jobs.config.has_accounting
                and jobs.facts.has_gpus
                and "gres/gpu" not in (jobs.config.text("AccountingStorageTRES") or "").lower()
            ),
        ),
        "accounting does not count GPUs: `status --long` takes their number from the runs' configs",
        "the administrator sets AccountingStorageTRES=gres/gpu",
    ),
    Check(
        "isolation.processors",
        "warning",
        setting(
            "TaskPlugin",
            "ConstrainCores",
            holds=lambda jobs: (
                jobs.share_nodes and not (jobs.confines("ConstrainCores") or "affinity" in jobs.task_plugins)
            ),
        ),
        "Slurm confines no job to its processors: jobs on one node slow each other, and timings vary",
        f"{_WHOLE_NODES}; the administrator can set TaskPlugin=task/affinity,task/cgroup and "
        "ConstrainCores=yes",
    ),
    Check(
        "isolation.devices",
        "warning",
        setting(
            "TaskPlugin",
            "ConstrainDevices",
            holds=lambda jobs: (
                jobs.share_nodes and jobs.facts.has_gpus and not jobs.confines("ConstrainDevices")
            ),
        ),
        "Slurm confines no job to its GPUs: a program that ignores CUDA_VISIBLE_DEVICES uses those of other "
        "jobs",
        f"{_WHOLE_NODES}; the administrator can set ConstrainDevices=yes",
    ),
    Check(
        "isolation.memory",
        "note",
        setting(
            "TaskPlugin",
            "ConstrainRAMSpace",
            holds=lambda jobs: jobs.share_nodes and not jobs.confines("ConstrainRAMSpace"),
        ),
        "Slurm limits no job to its memory: a run out of memory may end processes of other jobs, and its "
        "cause may read `killed` instead of `out_of_memory`",
        f"{_WHOLE_NODES}; the administrator can set ConstrainRAMSpace=yes",
    ),
    Check(
        "isolation.locked_memory",
        "warning",
        little_locked_memory,
        "jobs inherit this shell's limit of locked memory: InfiniBand, RoCE and EFA cannot register "
        "buffers, and NCCL fails or falls back to TCP",
        "set `setup: ulimit -l unlimited` in the site profile (as profile `infiniband` does); the "
        "administrator can set PropagateResourceLimitsExcept=MEMLOCK",
    ),
    Check(
        "isolation.gpu_clock",
        "warning",
        setting(
            "GpuFreqDef", holds=lambda jobs: not (jobs.config.text("GpuFreqDef") or "high").startswith("high")
        ),
        "Slurm sets the clock of GPUs in every job: throughput is that of this clock",
        "set `srun: {gpu-freq: high}` in the site profile, or note the clock beside results",
    ),
    Check(
        "isolation.srunportrange",
        "note",
        differs("SrunPortRange", "0-0"),
        "srun is limited to these ports: a firewall between login node and nodes is likely, and may block "
        "other ports between nodes as well",
        "if runs do not start, the administrator opens all ports between nodes",
    ),
    Check(
        "isolation.jobsubmitplugins",
        "note",
        differs("JobSubmitPlugins"),
        "the site checks or changes each job at its submission",
        "`submit.py sweep --dry-run --test-only` prints refusals; `scontrol show job` shows changes",
    ),
    Check(
        "isolation.jobcontainertype",
        "note",
        differs("JobContainerType"),
        "each job has its own /tmp (and /dev/shm), which ends with the job",
        "keep runs and data on the shared file system",
    ),
    Check(
        "isolation.mpi",
        "note",
        differs("MpiDefault"),
        "srun starts this MPI for each task, which torchrun does not use and which may fail in a container",
        "set `srun: {mpi: none}` in the site profile if a step fails at its start",
    ),
    Check(
        "controller.clock",
        "warning",
        lambda jobs: apart(offset_s) if abs(offset_s := jobs.facts.clock_offset_s or 0.0) > 5 else "",
        "this host's clock is {evidence} that of Slurm's controller",
        "the administrator synchronizes both by NTP (chrony); ranks convert the end of their job's time",
    ),
)


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
    reason = "run `submit.py sweep --dry-run --test-only`: Slurm says so itself"
    yield Unchecked("whether partition, account, QOS and GPU type of the site profile are admitted", reason)
    if not job:
        reason = "needs a job: submit.py doctor --job"
        yield Unchecked("Python, limits, /dev/shm and clock of a node, and locks between hosts", reason)
