"""Facts about a Slurm cluster, as one user has it, read with commands that may fail. Nothing is changed."""

from __future__ import annotations

import getpass
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.checks.host_facts import HostFacts
from jobs.schedulers.slurm import commands
from jobs.schedulers.slurm.commands import Gres, count_gpus, parse_gres
from jobs.schedulers.slurm.profile import Profile

_UNLIMITED = {"", "UNLIMITED", "INFINITE", "NONE", "N/A", "(NULL)"}
"""Values that stand for no limit or no setting, in upper case."""
_SECTION = re.compile(r"^(\S.*) Configuration:?\s*$")
_SETTING = re.compile(r"^\s*([A-Za-z][\w.]*(?:\[\d+\])?)\s*=\s*(.*?)\s*$")
_MIG = re.compile(r"(?:.*_)?\d+g\.\d+gb.*")
_GPU_RESOURCES = ("gpu", "shard", "mps")
_BAD_STATES = ("down", "drain", "drng", "fail", "maint", "inval", "unk", "error", "blocked")
_ALIVE = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING")
_TIMEOUT_S = 10.0
_DAYS = 7
"""Accounting is searched back for this time."""


@dataclass(frozen=True)
class Settings:
    """Settings as Slurm prints them, by name in lower case, since their spelling varies."""

    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """The value; None where it is missing, `(null)`, `none` or `N/A`."""
        value = self.values.get(name.lower())
        return None if value is None or value.upper() in _UNLIMITED else value

    def number(self, name: str) -> int | None:
        """The leading number of a value, such as 30 of `30 sec`; None without one."""
        number = re.match(r"-?\d+", self.values.get(name.lower(), ""))
        return int(number[0]) if number else None

    def flags(self, name: str) -> tuple[str, ...]:
        """The parts of a list with commas, in lower case, such as `requeue_delay=5`."""
        return tuple(part.strip().lower() for part in (self.text(name) or "").split(",") if part.strip())

    def evidence(self, *names: str) -> str:
        """`NAME = value`, as Slurm prints it; `NAME not set` where it is missing."""
        values = {name: self.values.get(name.lower()) for name in names}
        return ", ".join(
            f"{name} not set" if value is None else f"{name} = {value or '(empty)'}"
            for name, value in values.items()
        )


@dataclass(frozen=True)
class Config(Settings):
    """`scontrol show config`; the section on control groups overlays the other settings."""

    cgroup: Mapping[str, str] = field(default_factory=dict)
    """Settings of the section `Cgroup Support Configuration`, which `values` have as well."""

    @property
    def has_accounting(self) -> bool:
        """Whether slurmdbd is configured. Older versions print `accounting_storage/none`, newer ones null."""
        kind = self.text("AccountingStorageType")
        return kind is not None and not kind.endswith("/none")

    def is_yes(self, name: str) -> bool:
        return self.values.get(name.lower(), "").lower() in ("yes", "1", "true")


@dataclass(frozen=True)
class Partition(Settings):
    """A partition by `scontrol show partition`."""

    name: str = ""

    @property
    def is_default(self) -> bool:
        return self.text("Default") == "YES"

    @property
    def state(self) -> str:
        return self.values.get("state", "UP").upper()

    @property
    def is_exclusive(self) -> bool:
        """Whether each job has whole nodes."""
        return self.sharing.startswith("EXCLUSIVE")

    @property
    def sharing(self) -> str:
        return self.values.get("oversubscribe", "NO").upper()

    @property
    def max_minutes(self) -> int | None:
        """The time limit, `DAYS-HH:MM:SS`; None for an unlimited or unknown one."""
        limit = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):\d\d", self.values.get("maxtime", ""))
        days, hours, minutes = (int(part or 0) for part in limit.groups()) if limit else (0, 0, 0)
        return (24 * days + hours) * 60 + minutes if limit else None

    def allows(self, account: str) -> bool:
        """Whether `AllowAccounts` lists an account, and `DenyAccounts` does not."""
        allowed = (self.text("AllowAccounts") or "ALL").split(",")
        denied = (self.text("DenyAccounts") or "").split(",")
        return account not in denied and bool({account, "ALL"} & {*allowed})


@dataclass(frozen=True)
class Node:
    """A node in one partition, by sinfo."""

    name: str
    partition: str
    usable: bool
    cpus: int
    memory_mib: int
    gpus: tuple[Gres, ...]
    """Entries of generic resources that are GPUs or parts of them (`shard`, `mps`)."""

    @property
    def gpu_count(self) -> int:
        return count_gpus(self.gpus) or 0

    @property
    def gpu_types(self) -> list[str]:
        return [each.type for each in self.gpus if each.name == "gpu" and each.type]


@dataclass(frozen=True)
class QueuedJob:
    """A running or pending job of any user that squeue lists."""

    partition: str
    account: str | None
    user: str
    gpu_type: str | None
    gpus_per_node: int
    nodes: int


@dataclass(frozen=True)
class ClusterFacts:
    """All that was read. None: Slurm did not answer, and `refusals` has the reason."""

    user: str
    config: Config | None = None
    partitions: Sequence[Partition] | None = None
    nodes: Sequence[Node] | None = None
    queue: Sequence[QueuedJob] | None = None
    accounts: Sequence[str] = ()
    """Accounts of the user, the default one first."""
    finished: int | None = None
    """Number of jobs of the user that ended in the last days."""
    clock_offset_s: float | None = None
    """This host's clock minus the controller's, 0 within the resolution of 1 s."""
    refusals: Mapping[str, str] = field(default_factory=dict)

    def nodes_of(self, *partitions: str) -> list[Node]:
        """Nodes of these partitions, of all without one; each node once."""
        nodes = [node for node in self.nodes or () if not partitions or node.partition in partitions]
        return list({node.name: node for node in nodes}.values())

    @property
    def has_gpus(self) -> bool:
        return any(node.gpu_count for node in self.nodes or ())


@dataclass(frozen=True)
class Jobs:
    """Jobs with the options of `profile` on a cluster that answered."""

    facts: ClusterFacts
    config: Config
    profile: Profile
    host: HostFacts | None
    """The submitting host; None where its probe failed."""

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the profile, else the default partition; those that exist."""
        names = self.profile.partition.split(",") if self.profile.partition else None
        return [
            part
            for part in self.facts.partitions or ()
            if (part.is_default if names is None else part.name in names)
        ]

    @property
    def nodes(self) -> list[Node]:
        names = [part.name for part in self.partitions]
        return self.facts.nodes_of(*names) if names else []

    @property
    def gpu_types(self) -> list[str]:
        return sorted({name for node in self.nodes for name in node.gpu_types})

    @property
    def share_nodes(self) -> bool:
        whole = bool(self.partitions) and all(part.is_exclusive for part in self.partitions)
        return not (self.profile.exclusive or whole)

    @property
    def task_plugins(self) -> set[str]:
        return {name.removeprefix("task/") for name in self.config.flags("TaskPlugin")}

    def confines(self, setting: str) -> bool:
        """Whether control groups confine a job by this setting."""
        return "cgroup" in self.task_plugins and self.config.is_yes(setting)

    def preempt_mode(self, part: Partition) -> str:
        kind = self.config.text("PreemptType") or "none"
        default = self.config.values.get("preemptmode", "OFF")
        return "OFF" if kind.endswith("none") else (part.text("PreemptMode") or default).upper()

    def lost_nodes(self) -> str:
        names = [node.name for node in self.nodes if not node.usable]
        shown = f"{', '.join(names[:4])}{', ...' * (len(names) > 4)}"
        return f"{len(names)} of {len(self.nodes)}: {shown}" if names else ""

    def mixed_gpus(self) -> str:
        """Generic resources of the nodes, `gpu:h100:8 on 4 nodes`, if a job may get any of several types."""
        if self.profile.gpu_type is not None or len(self.gpu_types) < 2:
            return ""
        kinds = Counter(
            ",".join(f"{each.name}:{each.type or ''}:{each.count}".replace("::", ":") for each in node.gpus)
            for node in self.nodes
        )
        return "; ".join(f"{words or 'no GPU'} on {count} nodes" for words, count in kinds.items())

    def slices(self) -> str:
        """Types of MIG slices that a job may get."""
        names = [name for name in self.gpu_types if _MIG.fullmatch(name)]
        return ", ".join(names) if self.profile.gpu_type in (None, *names) else ""

    def lacks_gpus_per_node(self) -> bool:
        select = self.config.text("SelectType") or ""
        has_gpus = any(node.gpu_count for node in self.nodes)
        return has_gpus and select.endswith(("linear", "cons_res")) and self.profile.gpus == "gpus-per-node"


def parse_config(text: str) -> Config:
    """`scontrol show config`, in any version."""
    settings: dict[str, str] = {}
    cgroup: dict[str, str] = {}
    target = settings
    for line in text.splitlines():
        if section := _SECTION.match(line):
            target = cgroup if section[1].startswith("Cgroup") else {}
        elif setting := _SETTING.match(line):
            target[setting[1].lower()] = setting[2]
    return Config(settings | cgroup, cgroup)


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """`scontrol show partition --oneliner`, or the form of several lines."""
    blocks = [block.split() for block in text.split("PartitionName=")[1:]]
    return tuple(
        Partition(
            {
                name.lower(): value
                for name, equals, value in (word.partition("=") for word in words)
                if equals
            },
            first,
        )
        for first, *words in filter(None, blocks)
    )


def _rows(text: str, *numbers: int, fields: int) -> Iterator[list[str]]:
    """Lines of `fields` fields whose `numbers` are decimal."""
    for line in text.splitlines():
        row = line.strip().split("|")
        if len(row) >= fields and all(row[number].isdecimal() for number in numbers):
            yield row


def parse_nodes(text: str) -> tuple[Node, ...]:
    """`sinfo --noheader --Node -o %N|%P|%T|%c|%m|%G`: a line for each node in each partition."""
    return tuple(
        Node(
            name,
            partition.rstrip("*"),
            "*" not in state and not state.lower().startswith(_BAD_STATES),
            int(cpus),
            int(memory.rstrip("+")) if memory.rstrip("+").isdecimal() else 0,
            tuple(each for each in parse_gres(gres) if each.name in _GPU_RESOURCES),
        )
        for name, partition, state, cpus, memory, gres, *_ in _rows(text, 3, fields=6)
    )


def parse_queue(text: str) -> tuple[QueuedJob, ...]:
    """`squeue --noheader -o %P|%a|%q|%u|%b|%D|%C`."""
    jobs = []
    for partition, account, _, user, gres, nodes, *_ in _rows(text, 5, fields=7):
        gpus = [each for each in parse_gres(gres) if each.name == "gpu"]
        jobs.append(
            QueuedJob(
                partition.split(",")[0],
                None if account.upper() in _UNLIMITED else account,
                user,
                gpus[0].type if gpus else None,
                count_gpus(gpus) or 0,
                int(nodes),
            )
        )
    return tuple(jobs)


def parse_accounts(text: str) -> tuple[str, ...]:
    """`sacctmgr show user withassoc`, `DEFAULT|ACCOUNT` in each line: the default one first."""
    rows = [row[:2] for row in _rows(text, fields=2)]
    names = [default for default, _ in rows] + sorted(account for _, account in rows)
    return tuple(dict.fromkeys(filter(None, names)))


def parse_finished(text: str) -> int:
    """`sacct --parsable2 -o JobID,State`: number of jobs that have ended."""
    return sum(row[1].split(" ")[0] not in _ALIVE for row in _rows(text, fields=2))


def read_cluster() -> ClusterFacts:
    """The facts of the cluster. Without an answer of the controller, only the configuration was tried."""
    user = _user()
    refusals: dict[str, str] = {}

    def read(part: str, command: str, parse: Callable[[str], Any]) -> Any:
        words = command.split()
        try:
            return parse(commands.query(words, _TIMEOUT_S))
        except commands.SlurmCommandError as why:
            refusals[part] = f"`{' '.join(words[:3])}`: {why}"
            return None

    config = read("config", "scontrol show config", parse_config)
    if config is None:
        return ClusterFacts(user, refusals=refusals)
    facts: dict[str, Any] = {
        "partitions": read("partitions", "scontrol show partition --oneliner", parse_partitions),
        "nodes": read("nodes", "sinfo --noheader --Node -o %N|%P|%T|%c|%m|%G", parse_nodes),
        "queue": read("queue", "squeue --noheader -o %P|%a|%q|%u|%b|%D|%C", parse_queue),
        "clock_offset_s": _clock_offset_s(),
    }
    for part, command in (("partitions", "scontrol show partition"), ("nodes", "sinfo")):
        if facts[part] is not None and not facts[part]:  # PrivateData may hide them from this user
            facts[part] = None
            refusals[part] = f"`{command}` shows this user none"
    if facts["clock_offset_s"] is None:
        refusals["clock"] = "`sdiag` gives no time"
    if config.has_accounting:
        name = config.text("ClusterName")
        accounts = (
            "sacctmgr --noheader --parsable2 --readonly show user withassoc "
            f"name={user} {f'cluster={name} ' if name else ''}format=DefaultAccount,Account"
        )
        finished = (
            f"sacct --noheader --parsable2 --allocations --user={user} --starttime=now-{_DAYS}days "
            "-o JobID,State"
        )
        facts["accounts"] = read("accounts", accounts, parse_accounts) or ()
        facts["finished"] = read("finished", finished, parse_finished)
    return ClusterFacts(user, config, refusals=refusals, **facts)


def _clock_offset_s() -> float | None:
    before, controller = time.time(), commands.controller_time()
    if controller is None:
        return None
    return max(0.0, before - controller - 1) or min(0.0, time.time() - controller)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry in the password database
        return "unknown"
