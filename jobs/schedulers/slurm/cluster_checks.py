"""Checks of a Slurm cluster, as a table, for jobs with the options of one site profile. Pure.

A refusal that `sbatch --test-only` gives has no row: `disttrain sweep --dry-run --test-only` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from disttrain.config.sections.job import JobConfig
from jobs import PROGRAM
from jobs.checks.finding import Check
from jobs.checks.host_checks import apart
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE
from jobs.fabric.description import ENOUGH_LOCKED_BYTES
from jobs.schedulers.slurm.facts import Jobs, Partition

_OWN_CODES = {0, 1, 69, 75, EXIT_DO_NOT_REQUEUE}
"""Exit codes of a job's step (docs/requeue.md)."""
_WHOLE_NODES = "set `exclusive: true` in the site profile for measurements"


def setting(*names: str, holds: Callable[[Jobs], object]) -> Callable[[Jobs], str]:
    """The settings as evidence, if `holds`."""
    return lambda jobs: jobs.config.evidence(*names) if holds(jobs) else ""


def between(
    name: str, least: int, below: int, holds: Callable[[Jobs], bool] = lambda jobs: True
) -> Callable[[Jobs], str]:
    """A setting as evidence, if it is a number in this range, and `holds`."""
    return setting(name, holds=lambda jobs: jobs.config.number(name) in range(least, below) and holds(jobs))


def of_partitions(text: Callable[[Jobs, Partition], str]) -> Callable[[Jobs], str]:
    """The text of each partition as evidence, with its name."""
    return lambda jobs: ", ".join(
        f"{part.name}: {shown}" for part in jobs.partitions if (shown := text(jobs, part))
    )


def unconfined(name: str, holds: Callable[[Jobs], bool] = lambda jobs: True) -> Callable[[Jobs], str]:
    """Settings as evidence, if jobs share nodes whose control groups do not confine them by `name`."""
    condition = lambda jobs: jobs.share_nodes and not jobs.confines(name) and holds(jobs)  # noqa: E731
    return setting("TaskPlugin", name, holds=condition)


def matching(name: str, pattern: str) -> Callable[[Jobs], str]:
    """A setting as evidence, if it matches; one that is not set is empty."""
    return setting(name, holds=lambda jobs: re.search(pattern, jobs.config.text(name) or ""))


def shared_processors(jobs: Jobs, part: Partition) -> str:
    return f"OverSubscribe={part.sharing}" if re.fullmatch("FORCE(?!:1$).*", part.sharing) else ""


def shared_nodes(jobs: Jobs, part: Partition) -> str:
    return f"OverSubscribe={part.sharing}" if jobs.share_nodes and not part.is_exclusive else ""


def no_grace(jobs: Jobs, part: Partition) -> str:
    """The grace time of a QOS is in accounting."""
    mode, by_qos = jobs.preempt_mode(part), (jobs.config.text("PreemptType") or "").endswith("/qos")
    abrupt = mode != "OFF" and "SUSPEND" not in mode and not by_qos and not part.number("GraceTime")
    return f"PreemptMode={mode}, GraceTime=0" if abrupt else ""


def cancels(jobs: Jobs, part: Partition) -> str:
    return f"PreemptMode={mode}" if "CANCEL" in (mode := jobs.preempt_mode(part)) else ""


def exit_codes(jobs: Jobs) -> str:
    names = [
        name
        for name in ("RequeueExit", "RequeueExitHold")
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", jobs.config.text(name) or "")
        if _OWN_CODES & {*range(int(first), int(last or first) + 1)}
    ]
    return jobs.config.evidence(*names)


def full_queue(jobs: Jobs) -> str:
    most, queued = jobs.config.number("MaxJobCount"), len(jobs.facts.queue or ())
    return f"{queued} jobs, MaxJobCount = {most}" if most and queued > 0.9 * most else ""


def short_limit(jobs: Jobs, part: Partition) -> str:
    default_min = JobConfig().time_limit_min
    is_short = part.max_minutes is not None and part.max_minutes < default_min
    return f"MaxTime={part.text('MaxTime')}, and the default is {default_min:g} min" if is_short else ""


def memory_for_processors(jobs: Jobs, part: Partition) -> str:
    per_cpu = part.text("DefMemPerCPU") or jobs.config.text("DefMemPerCPU")
    return f"DefMemPerCPU={per_cpu}" if jobs.profile.memory is None and per_cpu else ""


def little_locked_memory(jobs: Jobs) -> str:
    """The limit of the submitting shell is that of the ranks where Slurm propagates it."""
    names = ("PropagateResourceLimits", "PropagateResourceLimitsExcept")
    sent = jobs.config.values.get(names[0].lower(), "ALL").lower().split(",")
    kept = jobs.config.flags(names[1])
    propagated = not {"memlock", "all"} & {*kept} if kept else bool({"memlock", "all"} & {*sent})
    sets_limit = any("ulimit -l" in line for line in (*jobs.profile.setup, *jobs.profile.node_setup))
    limit = jobs.host.locked_memory if jobs.host else None
    if (
        limit is None
        or limit >= ENOUGH_LOCKED_BYTES
        or sets_limit
        or not propagated
        or not jobs.facts.has_gpus
    ):
        return ""
    return f"ulimit -l: {limit // 1024}, {jobs.config.evidence(*names)}"


def wants_wckey(jobs: Jobs) -> bool:
    return "wckeys" in jobs.config.flags("AccountingStorageEnforce") and jobs.profile.wckey is None


def counts_no_gpus(jobs: Jobs) -> bool:
    counted = (jobs.config.text("AccountingStorageTRES") or "").lower()
    return jobs.config.has_accounting and jobs.facts.has_gpus and "gres/gpu" not in counted


CHECKS: tuple[Check[Jobs], ...] = (
    Check(
        "partitions.state",
        "error",
        of_partitions(lambda jobs, part: "" if part.state == "UP" else f"State={part.state}"),
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
        Jobs.lost_nodes,
        "some nodes of the partition run no jobs",
        "`sinfo -R` lists the reasons",
    ),
    Check(
        "partitions.oversubscribe",
        "warning",
        of_partitions(shared_processors),
        "several jobs run on the same processors: timings depend on the others",
        "for measurements name another partition: `--slurm partition=NAME`",
    ),
    Check(
        "partitions.shared_nodes",
        "note",
        of_partitions(shared_nodes),
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
        Jobs.mixed_gpus,
        "the partition has GPUs of several types, and a job may get any: runs are not comparable",
        "set `gpu_type` in the site profile to one of them",
    ),
    Check(
        "gpus.mig",
        "warning",
        Jobs.slices,
        "some GPUs are MIG slices: NCCL connects no two slices of one GPU, and their speed is a fraction",
        "set `gpu_type` to a whole GPU, or run one rank on each node",
    ),
    Check(
        "gpus.option",
        "warning",
        setting("SelectType", holds=Jobs.lacks_gpus_per_node),
        "--gpus-per-node needs select/cons_tres",
        "set `gpus: gres` in the site profile",
    ),
    Check(
        "limits.wckey",
        "warning",
        setting("AccountingStorageEnforce", holds=wants_wckey),
        "Slurm requires a workload characterization key, and the site profile has none",
        "`sacctmgr show wckey user=$USER` lists yours; set `wckey` in the site profile",
    ),
    Check(
        "limits.job_count",
        "warning",
        full_queue,
        "the queue is nearly full: {evidence}",
        "disttrain defers the runs above the limit; repeat the command later",
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
        matching("PrivateData", r"\bjobs\b"),
        "squeue lists your own jobs alone: `status` on the runs of another user cannot ask for their jobs",
        f"let their owner run `{PROGRAM} status`",
    ),
    Check(
        "requeues.exit_codes",
        "error",
        exit_codes,
        "Slurm requeues or holds every job that ends with an exit code that jobs of disttrain use for other "
        "meanings (0, 1, 69, 75, 93): finished or refused runs would start again",
        "the administrator removes these codes",
    ),
    Check(
        "requeues.held",
        "note",
        matching("SchedulerParameters", r"max_batch_requeue=[0-4]\b"),
        "Slurm holds a job whose start failed a few times, as after a failed prolog",
        "free it by `scontrol release JOB`, and exclude the node (`--slurm exclude=NODE`)",
    ),
    Check(
        "requeues.lost_node",
        "warning",
        between("SlurmdTimeout", 0, 1),
        "Slurm never marks a silent node as down, so the job of a lost node is not requeued",
        f"cancel such a run and `{PROGRAM} resume` it; the administrator can set SlurmdTimeout=300",
    ),
    Check(
        "signals.proctrack",
        "warning",
        matching("ProctrackType", "/pgid"),
        "Slurm tracks a step by its process group, and torchrun starts each rank in a session of its own: "
        "ranks may outlive their job and hold its GPUs",
        "the administrator sets ProctrackType=proctrack/cgroup; meanwhile look for left processes by `pgrep "
        "-u $USER` on a node that reports busy GPUs",
    ),
    Check(
        "signals.proctrack",
        "note",
        matching("ProctrackType", "/linuxproc"),
        "Slurm tracks processes by their parents: a rank whose parents died escapes, and a signal to the "
        "batch shell reaches srun as well",
        f"end runs by `{PROGRAM} cancel --graceful`, not by `scancel --full`; the administrator can set "
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
        f"`{PROGRAM} resume` continues such runs from their newest checkpoint",
    ),
    Check(
        "signals.kill_wait",
        "warning",
        between("KillWait", 0, 15),
        "ranks have little time to save between SIGTERM and SIGKILL, at scancel and at a pre-emption "
        "without grace",
        f"save often (`--set checkpoint.every_s=600`), and end runs by `{PROGRAM} cancel --graceful`; the "
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
        setting("AccountingStorageTRES", holds=counts_no_gpus),
        "accounting does not count GPUs: `status --long` takes their number from the runs' configs",
        "the administrator sets AccountingStorageTRES=gres/gpu",
    ),
    Check(
        "isolation.processors",
        "warning",
        unconfined("ConstrainCores", lambda jobs: "affinity" not in jobs.task_plugins),
        "Slurm confines no job to its processors: jobs on one node slow each other, and timings vary",
        f"{_WHOLE_NODES}; the administrator can set TaskPlugin=task/affinity,task/cgroup and "
        "ConstrainCores=yes",
    ),
    Check(
        "isolation.devices",
        "warning",
        unconfined("ConstrainDevices", lambda jobs: jobs.facts.has_gpus),
        "Slurm confines no job to its GPUs: a program that ignores CUDA_VISIBLE_DEVICES uses those of other "
        "jobs",
        f"{_WHOLE_NODES}; the administrator can set ConstrainDevices=yes",
    ),
    Check(
        "isolation.memory",
        "note",
        unconfined("ConstrainRAMSpace"),
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
        matching("GpuFreqDef", r"^(?!high)."),
        "Slurm sets the clock of GPUs in every job: throughput is that of this clock",
        "set `srun: {gpu-freq: high}` in the site profile, or note the clock beside results",
    ),
    Check(
        "isolation.srunportrange",
        "note",
        matching("SrunPortRange", r"^(?!.*0-0$)."),
        "srun is limited to these ports: a firewall between login node and nodes is likely, and may block "
        "other ports between nodes as well",
        "if runs do not start, the administrator opens all ports between nodes",
    ),
    Check(
        "isolation.jobsubmitplugins",
        "note",
        matching("JobSubmitPlugins", r"^(?!.*none$)."),
        "the site checks or changes each job at its submission",
        f"`{PROGRAM} sweep --dry-run --test-only` prints refusals; `scontrol show job` shows changes",
    ),
    Check(
        "isolation.jobcontainertype",
        "note",
        matching("JobContainerType", r"^(?!.*none$)."),
        "each job has its own /tmp (and /dev/shm), which ends with the job",
        "keep runs and data on the shared file system",
    ),
    Check(
        "isolation.mpi",
        "note",
        matching("MpiDefault", r"^(?!.*none$)."),
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
