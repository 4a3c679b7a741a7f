"""From the output of Slurm's commands to facts. Pure functions; unknown lines are skipped."""

from __future__ import annotations

import re

from jobs.schedulers.slurm.doctor.cluster_facts import (
    UNLIMITED,
    Association,
    Config,
    FinishedJob,
    Node,
    Partition,
    QueuedJob,
)
from jobs.schedulers.slurm.gres import Gres, count_gpus, parse_gres

_SECTION = re.compile(r"^(\S.*) Configuration:?\s*$")
_SETTING = re.compile(r"^\s*([A-Za-z][\w.]*(?:\[\d+\])?)\s*=\s*(.*?)\s*$")
_GPU_RESOURCES = ("gpu", "shard", "mps")

NODE_FORMAT = "%N|%P|%T|%c|%m|%G"
QUEUE_FORMAT = "%P|%a|%q|%u|%b|%D|%C"
PARTITION_SEPARATOR = "PartitionName="


def config(text: str) -> Config:
    """`scontrol show config`, in any version."""
    settings: dict[str, str] = {}
    cgroup: dict[str, str] = {}
    target = settings
    for line in text.splitlines():
        if section := _SECTION.match(line):
            target = cgroup if section[1].startswith("Cgroup") else {}
        elif found := _SETTING.match(line):
            target[found[1].lower()] = found[2]
    return Config(settings, cgroup)


def partitions(text: str) -> tuple[Partition, ...]:
    """`scontrol show partition --oneliner`, or the form of several lines."""
    found = []
    for block in text.split(PARTITION_SEPARATOR)[1:]:
        words = block.split()
        if not words:
            continue
        pairs = [word.partition("=") for word in words[1:]]
        found.append(Partition(words[0], {name.lower(): value for name, equals, value in pairs if equals}))
    return tuple(found)


def gpus(text: str) -> tuple[Gres, ...]:
    """Generic resources of a node or a job; those other than GPUs and their parts are skipped."""
    return tuple(each for each in parse_gres(text) if each.name in _GPU_RESOURCES)


def nodes(text: str) -> tuple[Node, ...]:
    """`sinfo --noheader --Node` in `NODE_FORMAT`: a line for each node in each partition."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) < 6 or not fields[3].isdecimal():
            continue
        name, partition, state, cpus, memory, gres = fields[:6]
        found.append(
            Node(
                name=name,
                partition=partition.rstrip("*"),
                state=state.rstrip("*~#!%$@^-+").lower(),
                responds="*" not in state,
                cpus=int(cpus),
                memory_mib=int(memory.rstrip("+")) if memory.rstrip("+").isdecimal() else 0,
                gpus=gpus(gres),
            )
        )
    return tuple(found)


def queue(text: str) -> tuple[QueuedJob, ...]:
    """`squeue --noheader` in `QUEUE_FORMAT`."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 7 or not fields[5].isdecimal() or not fields[6].isdecimal():
            continue
        of_node = [each for each in gpus(fields[4]) if each.name == "gpu"]
        found.append(
            QueuedJob(
                partition=fields[0].split(",")[0],
                account=_name(fields[1]),
                qos=_name(fields[2]),
                user=fields[3],
                gpu_type=of_node[0].type if of_node else None,
                gpus_per_node=count_gpus(of_node) or 0,
                nodes=int(fields[5]),
                cpus=int(fields[6]),
            )
        )
    return tuple(found)


def associations(text: str) -> tuple[Association, ...]:
    """`sacctmgr show assoc --parsable2` with Account,Partition,QOS,MaxJobs,MaxSubmit,MaxWall."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 6 and fields[0]:
            qos = tuple(name for name in fields[2].split(",") if name)
            found.append(
                Association(
                    fields[0],
                    _name(fields[1]),
                    qos,
                    _number(fields[3]),
                    _number(fields[4]),
                    _name(fields[5]),
                )
            )
    return tuple(found)


def finished(text: str) -> tuple[FinishedJob, ...]:
    """`sacct --parsable2` with JobID,State,Partition,Account,AllocTRES; jobs that have ended."""
    alive = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING")
    rows = [line.strip().split("|") for line in text.splitlines()]
    return tuple(FinishedJob(*row) for row in rows if len(row) == 5 and row[1].split(" ")[0] not in alive)


def _name(text: str) -> str | None:
    return None if text.upper() in UNLIMITED else text


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
