"""Findings on signals: process tracking, pre-emption, and the time between SIGTERM and SIGKILL. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.slurm.doctor.cluster_facts import Config, Partition

_KILL_WAIT_S = 15
_UNKILLABLE_S = 120


def findings(config: Config, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Findings for jobs in these partitions."""
    yield from _tracking(config)
    yield from _preemption(config, partitions)
    kill_wait_s = config.number("KillWait")
    if kill_wait_s is not None and kill_wait_s < _KILL_WAIT_S:
        yield Finding(
            "warning",
            "signals.kill_wait",
            f"ranks have {kill_wait_s} s to save between SIGTERM and SIGKILL, at scancel and at a "
            "pre-emption without grace",
            "save often (`--set checkpoint.every_s=600`), and end runs by `submit.py cancel --graceful`; the "
            "administrator can raise KillWait to 30 s",
            config.evidence("KillWait"),
        )
    unkillable_s = config.number("UnkillableStepTimeout")
    if unkillable_s is not None and 0 < unkillable_s < _UNKILLABLE_S:
        yield Finding(
            "note",
            "signals.unkillable",
            f"a rank that waits for the file system {unkillable_s} s after SIGKILL drains its node "
            "(`Kill task failed`)",
            "the administrator raises UnkillableStepTimeout to 180 s where checkpoints go to a busy file "
            "system",
            config.evidence("UnkillableStepTimeout"),
        )


def _tracking(config: Config) -> Iterator[Finding]:
    kind = (config.text("ProctrackType") or "").removeprefix("proctrack/")
    if kind == "cgroup" and config.is_yes("SignalChildrenProcesses") is not True:
        yield Finding(
            "note",
            "signals.children",
            "Slurm sends its warning signal to the task that srun starts, not to torchrun and ranks below it",
            "none for submit.py, whose agent is that task; in a script of your own, `exec` the program that "
            "handles the signal",
            f"ProctrackType = proctrack/cgroup, {config.evidence('SignalChildrenProcesses')}",
        )
    elif kind == "cgroup":
        yield Finding(
            "note",
            "signals.all_processes",
            "Slurm sends its warning signal to every process of a step; torchrun dies of USR1 and USR2",
            "none for submit.py, which starts torchrun with both ignored; in a script of your own, "
            "`trap '' USR1 USR2; exec torchrun ...`",
            config.evidence("SignalChildrenProcesses"),
        )
    elif kind == "pgid":
        yield Finding(
            "warning",
            "signals.proctrack",
            "Slurm tracks a step by its process group, and torchrun starts each rank in a session of its "
            "own: ranks may outlive their job and hold its GPUs",
            "the administrator sets ProctrackType=proctrack/cgroup; meanwhile look for left processes by "
            "`pgrep -u $USER` on a node that reports busy GPUs",
            config.evidence("ProctrackType"),
        )
    elif kind == "linuxproc":
        yield Finding(
            "note",
            "signals.proctrack",
            "Slurm tracks processes by their parents: a rank whose parents died escapes, and a signal to the "
            "batch shell reaches srun as well",
            "end runs by `submit.py cancel --graceful`, not by `scancel --full`; the administrator can set "
            "ProctrackType=proctrack/cgroup",
            config.evidence("ProctrackType"),
        )


def _preemption(config: Config, partitions: Sequence[Partition]) -> Iterator[Finding]:
    kind = config.text("PreemptType")
    if kind is None or kind.endswith("/none"):
        return
    default = config.settings.get("preemptmode", "OFF").upper()
    modes = {part.name: (part.settings.get("preemptmode") or default).upper() for part in partitions}
    hit = [part for part in partitions if modes[part.name] != "OFF"]
    warned = config.has_flag("PreemptParameters", "send_user_signal") or config.has_flag(
        "SlurmctldParameters", "preempt_send_user_signal"
    )
    abrupt = [part.name for part in hit if part.grace_s == 0 and "SUSPEND" not in modes[part.name]]
    if abrupt and not kind.endswith("/qos"):  # the grace time of a QOS is in accounting
        yield Finding(
            "warning",
            "signals.no_grace",
            f"pre-emption in {', '.join(abrupt)} comes without a warning: Slurm sends no signal before it "
            "requeues the job, and steps after the last checkpoint are lost unless a save fits into KillWait",
            "set checkpoint.every_s to the work that may be lost; the administrator can set GraceTime of the "
            "partition",
            f"{config.evidence('PreemptType')}, GraceTime=0",
        )
    gracious = [part for part in hit if part.grace_s > 0]
    if gracious and not warned:
        yield Finding(
            "note",
            "signals.user_signal",
            "at a pre-emption with grace Slurm sends SIGTERM, and not the signal of --signal",
            "none for submit.py, which stops at either; in a script of your own, save at SIGTERM",
            f"PreemptParameters lacks send_user_signal, GraceTime={gracious[0].grace_s}",
        )
    cancelling = [name for name, mode in modes.items() if "CANCEL" in mode]
    if cancelling:
        yield Finding(
            "warning",
            "signals.preempt_cancel",
            f"pre-emption in {', '.join(cancelling)} cancels jobs and does not requeue them",
            "`submit.py resume` continues such runs from their newest checkpoint",
            f"PreemptMode={modes[cancelling[0]]}",
        )
