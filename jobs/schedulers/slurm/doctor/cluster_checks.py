"""All findings on a cluster, and the checks that could not be made. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jobs.schedulers.doctor.diagnosis import Finding, Unchecked
from jobs.schedulers.doctor.probe import HostFacts
from jobs.schedulers.slurm.doctor import (
    accounting,
    isolation,
    limits,
    partitions,
    releases,
    requeues,
    signals,
)
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Partition
from jobs.schedulers.slurm.site_profile import Profile

_CLOCK_S = 5.0
_PARTS = {
    "partitions": "partitions: names, states, limits",
    "nodes": "nodes and GPUs",
    "queue": "length of the queue",
    "associations": "accounts and limits of this user",
    "clock": "clock of the controller",
}


def cluster_findings(facts: ClusterFacts, profile: Profile, host: HostFacts | None) -> Iterator[Finding]:
    """Findings of all families. `host`: the submitting host, None where its probe failed."""
    config = facts.config
    if config is None:
        yield Finding(
            "error",
            "controller.silent",
            "Slurm is installed here, and its controller does not answer: no job can be submitted",
            "set SLURM_CONF or load the site's Slurm module, run this on a login node, or wait for the "
            "controller (`scontrol ping`); `--cluster local` uses this machine",
            facts.refusals.get("config", "no answer"),
        )
        return
    chosen = partitions.chosen_partitions(facts.partitions or (), profile)
    yield from partitions.findings(facts, config, profile, chosen)
    yield from limits.findings(facts, config, profile)
    yield from requeues.findings(facts, config)
    yield from signals.findings(config, chosen)
    yield from accounting.findings(facts, config)
    exclusive = bool(profile.exclusive) or _whole_nodes(chosen)
    yield from isolation.findings(facts, config, profile, exclusive, host)
    yield from releases.findings(config, profile, chosen)
    offset_s = facts.clock_offset_s
    if offset_s is not None and abs(offset_s) > _CLOCK_S:
        side = "ahead of" if offset_s > 0 else "behind"
        yield Finding(
            "warning",
            "controller.clock",
            f"this host's clock is {abs(offset_s):.0f} s {side} that of Slurm's controller",
            "the administrator synchronizes both by NTP (chrony); ranks convert the end of their job's time",
            "sdiag",
        )


def _whole_nodes(chosen: Sequence[Partition]) -> bool:
    return bool(chosen) and all(part.is_exclusive for part in chosen)


def unchecked(facts: ClusterFacts, *, job: bool) -> Iterator[Unchecked]:
    """Checks that could not be made. `job`: a node was examined, or the attempt failed and is listed."""
    config = facts.config
    if config is None:
        yield Unchecked("the cluster's configuration", facts.refusals.get("config", "no answer"))
        return
    if config.version is None:
        named = config.settings.get("slurm_version")
        reason = "`scontrol show config` names " + (f"the version {named!r}" if named else "no version")
        yield Unchecked("traps of this release", reason)
    for part, check in _PARTS.items():
        if part in facts.refusals:
            yield Unchecked(check, facts.refusals[part])
    if config.has_accounting and facts.finished is not None and not facts.finished:
        reason = f"no job of {facts.user} ended within 7 days; run the doctor again after a job"
        yield Unchecked("accounting of a finished job", reason)
    if not config.has_accounting:
        yield Unchecked("accounts and limits of this user", "the cluster has no accounting")
    if (config.text("ProctrackType") or "").endswith("/cgroup") and not config.cgroup:
        yield Unchecked("control groups", "`scontrol show config` has no section on them; read cgroup.conf")
    if (config.text("PreemptType") or "").endswith("/qos"):
        yield Unchecked("grace time of each QOS", "run `sacctmgr show qos format=Name,GraceTime,PreemptMode`")
    if not job:
        reason = "needs a job: submit.py doctor --job"
        yield Unchecked("Python, limits, /dev/shm and clock of a node, and locks between hosts", reason)
