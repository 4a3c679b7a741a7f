"""Typed facts about a Slurm cluster, as one user has it. None always means that Slurm did not answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.schedulers.slurm.gres import Gres, count_gpus
from jobs.schedulers.slurm.version import SlurmVersion, parse_version

UNLIMITED = {"", "UNLIMITED", "INFINITE", "NONE", "N/A", "(NULL)"}
"""Values that stand for no limit or no setting, in upper case."""


@dataclass(frozen=True)
class Config:
    """Settings of `scontrol show config`, by name in lower case, since their spelling varies."""

    settings: Mapping[str, str]
    cgroup: Mapping[str, str] = field(default_factory=dict)
    """Settings of the section `Cgroup Support Configuration`."""

    def text(self, name: str) -> str | None:
        """The value; None where it is missing, `(null)`, `none` or `N/A`."""
        value = self.settings.get(name.lower())
        return None if value is None or value.upper() in UNLIMITED else value

    def number(self, name: str) -> int | None:
        """The leading number of a value, such as 30 of `30 sec`; None without one."""
        found = re.match(r"-?\d+", self.settings.get(name.lower(), ""))
        return int(found[0]) if found else None

    def flags(self, name: str) -> tuple[str, ...]:
        """The parts of a list with commas, in lower case, such as `requeue_delay=5`."""
        return tuple(part.strip().lower() for part in (self.text(name) or "").split(",") if part.strip())

    def has_flag(self, name: str, flag: str) -> bool:
        """Whether a list has the part `flag` or `flag=...`."""
        return any(part == flag or part.startswith(f"{flag}=") for part in self.flags(name))

    def is_yes(self, name: str) -> bool | None:
        """A setting of the section on control groups; None where Slurm does not show it."""
        value = self.cgroup.get(name.lower())
        return None if value is None else value.lower() in ("yes", "1", "true")

    def evidence(self, name: str) -> str:
        """`NAME = value`, as Slurm prints it; `NAME not set` where it is missing."""
        value = self.settings.get(name.lower(), self.cgroup.get(name.lower()))
        return f"{name} not set" if value is None else f"{name} = {value or '(empty)'}"

    @property
    def has_accounting(self) -> bool:
        """Whether slurmdbd is configured. Older versions print `accounting_storage/none`, newer ones null."""
        kind = self.text("AccountingStorageType")
        return kind is not None and not kind.endswith("/none")

    @property
    def version(self) -> SlurmVersion | None:
        """Version of the controller."""
        return parse_version(f"slurm {self.settings.get('slurm_version', '')}")


@dataclass(frozen=True)
class Partition:
    """A partition by `scontrol show partition`; `settings` by name in lower case."""

    name: str
    settings: Mapping[str, str]

    def text(self, name: str) -> str | None:
        value = self.settings.get(name.lower())
        return None if value is None or value.upper() in UNLIMITED else value

    @property
    def is_default(self) -> bool:
        return self.settings.get("default", "").upper() == "YES"

    @property
    def state(self) -> str:
        return self.settings.get("state", "UP").upper()

    @property
    def is_exclusive(self) -> bool:
        """Whether each job has whole nodes."""
        return self.settings.get("oversubscribe", "").upper().startswith("EXCLUSIVE")

    @property
    def grace_s(self) -> int:
        value = self.text("GraceTime") or "0"
        return int(value) if value.isdigit() else 0

    @property
    def max_minutes(self) -> int | None:
        return minutes(self.settings.get("maxtime", ""))

    def denies(self, account: str | None) -> bool:
        """Whether `DenyAccounts` lists an account."""
        return account is not None and account in (self.text("DenyAccounts") or "").split(",")

    def allows(self, account: str | None) -> bool:
        """Whether `AllowAccounts` lists an account, and `DenyAccounts` does not; True for an unknown account.

        Newer releases also apply both lists to subaccounts of the listed accounts.
        """
        allowed = self.text("AllowAccounts")
        listed = allowed is None or allowed.upper() == "ALL" or account in allowed.split(",")
        return account is None or (listed and not self.denies(account))


@dataclass(frozen=True)
class Node:
    """A node in one partition, by sinfo."""

    name: str
    partition: str
    state: str
    """Without its suffix: `idle`, `mixed`, `drained`, `down`, ..."""
    responds: bool
    cpus: int
    memory_mib: int
    gpus: tuple[Gres, ...]
    """Entries of generic resources that are GPUs or parts of them (`shard`, `mps`)."""

    @property
    def usable(self) -> bool:
        bad = ("down", "drain", "drng", "fail", "maint", "inval", "unk", "error", "blocked")
        return self.responds and not self.state.startswith(bad)

    @property
    def gpu_count(self) -> int:
        return count_gpus(self.gpus) or 0


@dataclass(frozen=True)
class QueuedJob:
    """A running or pending job of any user that squeue lists."""

    partition: str
    account: str | None
    qos: str | None
    user: str
    gpu_type: str | None
    gpus_per_node: int
    nodes: int
    cpus: int


@dataclass(frozen=True)
class Association:
    """A row of sacctmgr for the user: an account, and its limits."""

    account: str
    partition: str | None
    qos: tuple[str, ...]
    max_jobs: int | None
    max_submit: int | None
    max_wall: str | None


@dataclass(frozen=True)
class FinishedJob:
    """A job of the user that accounting lists as ended."""

    job_id: str
    state: str
    partition: str
    account: str
    tres: str


@dataclass(frozen=True)
class ClusterFacts:
    """All that was read. `refusals` has the reason for each part that is None."""

    user: str
    config: Config | None = None
    partitions: Sequence[Partition] | None = None
    nodes: Sequence[Node] | None = None
    queue: Sequence[QueuedJob] | None = None
    associations: Sequence[Association] | None = None
    default_account: str | None = None
    finished: Sequence[FinishedJob] | None = None
    """Jobs of the user in the last days."""
    clock_offset_s: float | None = None
    """This host's clock minus the controller's, 0 within the resolution of 1 s."""
    refusals: Mapping[str, str] = field(default_factory=dict)

    def nodes_of(self, partition: str | None = None) -> list[Node]:
        """Nodes of a partition; each node once without one."""
        if partition is None:
            return list({node.name: node for node in self.nodes or ()}.values())
        return [node for node in self.nodes or () if node.partition == partition]

    @property
    def has_gpus(self) -> bool:
        return any(node.gpu_count for node in self.nodes or ())


def minutes(text: str) -> int | None:
    """A time limit of Slurm, `DAYS-HH:MM:SS`, in minutes; None for an unlimited or unknown one."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text.strip())
    if found is None:
        return None
    days, hours, mins = (int(part or 0) for part in found.groups()[:3])
    return (24 * days + hours) * 60 + mins
