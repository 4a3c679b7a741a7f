"""Differences between versions of Slurm on which this code depends, as one table. Standard library only.

Batch scripts state all counts, so that most differences between versions do not concern them. The table has
the others. Sources: Slurm's CHANGELOG files and release notes.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.schedulers.slurm.version import NEWEST, SlurmVersion


@dataclass(frozen=True)
class Capability:
    """A behaviour of Slurm in a range of versions."""

    meaning: str
    since: SlurmVersion | None = None
    """First version; None: every version that this code supports (22.05 and newer)."""
    until: SlurmVersion | None = None
    """First version without; None: no version so far."""

    def is_in(self, version: SlurmVersion) -> bool:
        first = self.since is None or version >= self.since
        return first and (self.until is None or version < self.until)


CAPABILITIES: dict[str, Capability] = {
    "job_end_time": Capability("tasks have SLURM_JOB_END_TIME", since=SlurmVersion(23, 2)),
    "tres_per_task": Capability(
        "--cpus-per-task sets SLURM_TRES_PER_TASK as well, and srun refuses two different counts",
        since=SlurmVersion(23, 11),
    ),
    "exclusive_topo": Capability("sbatch has --exclusive=topo", since=SlurmVersion(24, 5)),
    "gpus_before_gpus_per_node": Capability(
        "srun ignores SLURM_GPUS_PER_NODE where --gpus is given", since=SlurmVersion(24, 11)
    ),
    "cpu_bind_rank": Capability("srun has --cpu-bind=rank", until=SlurmVersion(24, 11)),
    "expedited_requeue": Capability(
        "sbatch has --requeue=expedite, where SlurmctldParameters has enable_expedited_requeue",
        since=SlurmVersion(25, 11),
    ),
    "requeue_delay": Capability(
        "SchedulerParameters has requeue_delay, the wait of a requeued job", since=SlurmVersion(25, 11)
    ),
    "topology_order": Capability(
        "the nodes of a step are in the order of the topology, not in that of the job's node list",
        since=SlurmVersion(26, 5),
    ),
    "gres_beside_gpus_per_node": Capability(
        "--gres=gpu:N may stand beside --gpus-per-node", until=SlurmVersion(26, 5)
    ),
}


def first_with(name: str) -> SlurmVersion:
    """First version of a capability that came with one."""
    since = CAPABILITIES[name].since
    assert since is not None, name
    return since


def first_without(name: str) -> SlurmVersion:
    """First version without a capability that is gone."""
    until = CAPABILITIES[name].until
    assert until is not None, name
    return until


def capabilities(version: SlurmVersion | None) -> frozenset[str]:
    """Names of the capabilities of a version; those of `NEWEST` for an unknown version."""
    known = version or NEWEST
    return frozenset(name for name, each in CAPABILITIES.items() if each.is_in(known))
