"""The requested cluster (`ClusterSpec`) and the text of its configuration files: pure functions.

Standard library only.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from disttrain.errors import ConfigError

SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
SLURMDBD_PORT = 6819
"""Slurm's default ports. Each cluster has its own network namespace, so two clusters do not collide."""

CPUS_PER_GPU = 4
_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
_LINK = re.compile(r"(\d+(?:\.\d+)?)([kmg])bit")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}
_MAX_NODES = 64
_MAX_GPUS = 64


@dataclass(frozen=True)
class ClusterSpec:
    """The options of `cluster up`."""

    name: str = "mini"
    nodes: int = 4
    gpus_per_node: int = 4
    link: str = "1gbit"
    """Rate of each node's link in each direction, in the notation of tc; `none` leaves the link unshaped."""
    accounting: bool = True
    grace_s: int = 30
    """Seconds that a pre-empted job may still run."""
    short_timeouts: bool = False
    """Reduce Slurm's timeouts to seconds, for fault tests."""

    @property
    def link_bits_per_s(self) -> int | None:
        """Rate of a link in bits per second; None when unshaped."""
        found = _LINK.fullmatch(self.link)
        return round(float(found[1]) * _UNITS[found[2]]) if found else None

    @property
    def head(self) -> str:
        return f"{self.name}-head"

    @property
    def node_names(self) -> list[str]:
        """Host names, each with the cluster's name, so that run records identify the cluster."""
        return [f"{self.name}-{number}" for number in range(1, self.nodes + 1)]

    @property
    def cpus_per_node(self) -> int:
        """Processors that a node declares to Slurm, independent of the processors of this machine."""
        return CPUS_PER_GPU * max(1, self.gpus_per_node)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def checked(spec: ClusterSpec) -> ClusterSpec:
    """Return the spec. Raises `ConfigError` for a value out of range."""
    if not _NAME.fullmatch(spec.name):
        raise ConfigError(
            f"--name: {spec.name!r} cannot name a cluster: a lower-case letter, then up to 11 of a-z and 0-9"
        )
    for flag, value, lowest, highest in (
        ("--nodes", spec.nodes, 1, _MAX_NODES),
        ("--gpus-per-node", spec.gpus_per_node, 0, _MAX_GPUS),
        ("--grace-s", spec.grace_s, 0, 65533),
    ):
        if not lowest <= value <= highest:
            raise ConfigError(f"{flag}={value} is not between {lowest} and {highest}")
    if spec.link != "none" and not (spec.link_bits_per_s or 0) >= _UNITS["m"]:
        raise ConfigError(f"--link={spec.link!r} is not a rate of 1mbit or more (1gbit, 400mbit), nor none")
    return spec


@dataclass(frozen=True)
class Subnet:
    """The /24 of one cluster. The host machine has one address in it, on its link to the bridge."""

    number: int

    @property
    def cidr(self) -> str:
        return f"10.213.{self.number}.0/24"

    @property
    def head(self) -> str:
        return f"10.213.{self.number}.1"

    @property
    def machine(self) -> str:
        return f"10.213.{self.number}.254"

    def node(self, number: int) -> str:
        """Address of a node; numbers start at 1."""
        return f"10.213.{self.number}.{10 + number}"


class ClusterFolder:
    """Paths of one cluster's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.json"
        self.subnet = path / "subnet"
        """The number of the subnet."""
        self.is_up = path / "up"
        """Exists once the cluster was up."""
        self.slurm_conf = path / "slurm.conf"
        self.slurmdbd_conf = path / "slurmdbd.conf"
        self.hosts = path / "hosts"
        self.munge_key = path / "munge.key"
        self.run = path / "run"
        """Sockets and pid files. Each node mounts a tmpfs here, so all nodes share one path."""
        self.munge_socket = self.run / "munge.socket"
        self.database = path / "database"
        self.database_socket = self.database / "mariadb.socket"
        self.logs = path / "log"
        self.mail_program = path / "mail"
        self.mail_log = self.logs / "mail.log"
        """One line for each mail of Slurm, which is not sent: `-s SUBJECT RECIPIENT`."""
        self.devices = path / "dev"
        self.controller_state = path / "slurmctld"

    def spool(self, node: str) -> Path:
        return self.path / "spool" / node


def slurm_conf(
    spec: ClusterSpec,
    subnet: Subnet,
    folder: ClusterFolder,
    *,
    version: tuple[int, int],
    first_job: int,
    memory_mb: int,
) -> str:
    """Text of `slurm.conf`. `memory_mb`: MiB that one node declares."""
    auth = f"socket={folder.munge_socket}"
    lines = [
        f"ClusterName={spec.name}",
        f"SlurmctldHost={spec.head}({subnet.head})",
        f"SlurmctldPort={SLURMCTLD_PORT}",
        f"SlurmdPort={SLURMD_PORT}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # A requeued job starts again only after the lifetime of its credential.
        f"AuthInfo={auth}" + (",cred_expire=5" if spec.short_timeouts else ""),
        f"StateSaveLocation={folder.controller_state}",
        f"SlurmdSpoolDir={folder.spool('%n')}",
        f"SlurmctldPidFile={folder.run}/slurmctld.pid",
        f"SlurmdPidFile={folder.run}/slurmd.pid",
        f"SlurmctldLogFile={folder.logs}/slurmctld.log",
        f"SlurmdLogFile={folder.logs}/slurmd-%n.log",
        f"MailProg={folder.mail_program}",
        # Job ids differ between clusters: a run directory may outlive several of them.
        f"FirstJobId={first_job}",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "MpiDefault=none",
        "SlurmdParameters=config_overrides",  # declared hardware, not this machine's
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        f"DefMemPerCPU={memory_mb // spec.cpus_per_node}",
        "ReturnToService=2",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        # Send a job's warning signal at pre-emption too. Slurm 23.02 renamed the setting.
        "PreemptParameters=send_user_signal"
        if version >= (23, 2)
        else "SlurmctldParameters=preempt_send_user_signal",
        *(_short_timeouts() if spec.short_timeouts else []),
        *(_accounting(spec, subnet, folder) if spec.accounting else []),
        *(["GresTypes=gpu"] if spec.gpus_per_node else []),
        *(
            f"NodeName={node} NodeAddr={subnet.node(number)} CPUs={spec.cpus_per_node} RealMemory={memory_mb}"
            + (f" Gres=gpu:{spec.gpus_per_node}" if spec.gpus_per_node else "")
            for number, node in enumerate(spec.node_names, 1)
        ),
        # The pre-empted job's own partition sets its grace time.
        f"PartitionName=DEFAULT Nodes=ALL State=UP MaxTime=INFINITE GraceTime={spec.grace_s}",
        "PartitionName=gpu Default=YES PriorityTier=1 PreemptMode=REQUEUE",
        "PartitionName=urgent PriorityTier=10 PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def _short_timeouts() -> list[str]:
    return [
        "KillWait=5",
        "SlurmdTimeout=15",
        "MessageTimeout=10",
        "SchedulerParameters=bf_interval=2,sched_interval=5",
    ]


def _accounting(spec: ClusterSpec, subnet: Subnet, folder: ClusterFolder) -> list[str]:
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={subnet.head}",
        f"AccountingStoragePort={SLURMDBD_PORT}",
        f"AccountingStoragePass={folder.munge_socket}",
        "AccountingStoreFlags=job_comment",
        *(["AccountingStorageTRES=gres/gpu"] if spec.gpus_per_node else []),
    ]


def slurmdbd_conf(spec: ClusterSpec, folder: ClusterFolder) -> str:
    """Text of `slurmdbd.conf`. For `localhost`, the client library of MariaDB connects to a Unix socket."""
    lines = [
        f"DbdHost={spec.head}",
        f"DbdPort={SLURMDBD_PORT}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder.munge_socket}",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        f"StorageLoc=slurm_{spec.name}",
        f"PidFile={folder.run}/slurmdbd.pid",
        f"LogFile={folder.logs}/slurmdbd.log",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(spec: ClusterSpec, folder: ClusterFolder) -> str:
    """Text of `gres.conf`. GPUs are character devices: Slurm drains a node without their files."""
    if not spec.gpus_per_node:
        return ""
    devices = f"{folder.devices}/gpu[0-{spec.gpus_per_node - 1}]"
    return f"NodeName={spec.name}-[1-{spec.nodes}] Name=gpu File={devices}\n"


def mail_program(folder: ClusterFolder) -> str:
    """Text of the program that Slurm calls to send a mail. It writes the mail to a log."""
    return f'#!/bin/sh\necho "$*" >> {shlex.quote(str(folder.mail_log))}\n'


def cgroup_conf(version: tuple[int, int]) -> str:
    """Text of `cgroup.conf`. Control groups are disabled, which Slurm since 23.11 needs in writing."""
    return "CgroupPlugin=disabled\n" if version >= (23, 11) else ""


def hosts(spec: ClusterSpec, subnet: Subnet) -> str:
    """Text of `/etc/hosts` in the head and the nodes. The machine's own file is not changed."""
    lines = ["127.0.0.1 localhost", f"{subnet.head} {spec.head}", f"{subnet.machine} {spec.name}-machine"]
    lines += [f"{subnet.node(number)} {node}" for number, node in enumerate(spec.node_names, 1)]
    return "\n".join(lines) + "\n"
