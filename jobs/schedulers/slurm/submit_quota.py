"""How many jobs Slurm lets this user have: from the controller, and from accounting where that is on.

What cannot be asked is no limit: `sbatch` then says so by itself.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.schedulers.base import SubmitQuota
from jobs.schedulers.slurm import commands

_NAMED = re.compile(r"\b(?:Assoc|QOS)\w+")
_UNNAMED = "job submit limit"
"""Slurm's sentence for every refusal of an association or QOS has these words in it: of a size, a time and of
jobs alike."""


@dataclass(frozen=True)
class Controller:
    """What the controller's own configuration says."""

    cluster: str = ""
    array: int | None = None
    """Tasks of one array."""
    jobs: int | None = None
    """Jobs of all users together, those that ended a moment ago too."""
    enforces: bool = False
    """Whether it holds users to the limits in accounting."""


@dataclass(frozen=True)
class Limit:
    """A limit of jobs, and how many of them are taken."""

    most: int
    taken: int
    whose: str


def room(profile: Mapping[str, Any] | None) -> SubmitQuota:
    """How many more jobs with this profile's account, QOS and partition there may be."""
    controller = parse_config(commands.ask(["scontrol", "show", "config"]) or "")
    limits = []
    if controller.jobs is not None:
        listed = commands.ask(["squeue", "--noheader", "--array", "--states=all", "-o", "%i"])
        if listed is not None:
            limits.append(Limit(controller.jobs, len(listed.split()), "MaxJobCount of the cluster"))
    if controller.enforces:
        limits += _in_accounting(controller.cluster, profile or {})
    return tightest(limits, controller.array)


def tightest(limits: Sequence[Limit], array: int | None) -> SubmitQuota:
    """The room that all limits leave."""
    most = max(1, array) if array is not None else 1
    if not limits:
        return SubmitQuota(most)
    tight = min(limits, key=lambda limit: limit.most - limit.taken)
    return SubmitQuota(
        most, max(0, tight.most - tight.taken), f"the limit of {tight.most} jobs ({tight.whose})"
    )


def reached(message: str) -> str | None:
    """Which limit of jobs a refusal of `sbatch` speaks of, one that fewer jobs undo; None if of none."""
    named = _NAMED.search(message)
    if named is not None:
        return f"the limit of jobs ({named[0]})" if "Submit" in named[0] else None
    return "the limit of jobs" if _UNNAMED in message.lower() else None


def parse_config(text: str) -> Controller:
    """From the output of `scontrol show config`."""
    said = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            said[name.strip()] = value.strip()
    tasks = re.search(r"max_array_tasks=(\d+)", said.get("SchedulerParameters", ""))
    arrays = [_number(said.get("MaxArraySize", "")), _number(tasks[1]) if tasks else None]
    enforced = said.get("AccountingStorageEnforce", "").split(",")
    return Controller(
        cluster=said.get("ClusterName", ""),
        array=min((size for size in arrays if size is not None), default=None),
        jobs=_number(said.get("MaxJobCount", "")) or None,
        enforces=bool({"limits", "safe"} & set(enforced)),
    )


def _in_accounting(cluster: str, profile: Mapping[str, Any]) -> list[Limit]:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return []
    mine = commands.ask(["squeue", "--noheader", "--array", *commands.MINE, "-o", "%i|%a|%q"])
    if mine is None:
        return []
    jobs = [line.split("|") for line in mine.splitlines() if line.count("|") == 2]
    account = profile.get("account") or next(
        iter(_rows("user", ["defaultaccount"], [f"name={user}"])), {}
    ).get("defaultaccount", "")
    fields = ["account", "partition", "maxsubmitjobs", "defaultqos"]
    found = _rows("assoc", fields, [f"cluster={cluster}", f"user={user}", f"account={account}"])
    limits = []
    own = _for_partition(found, profile.get("partition") or "")
    if own and (most := _number(own["maxsubmitjobs"])) is not None:
        taken = sum(job[1] == account for job in jobs)
        limits.append(Limit(most, taken, f"MaxSubmitJobs of account {account}"))
    qos = profile.get("qos") or (own or {}).get("defaultqos") or "normal"
    for row in _rows("qos", ["name", "maxsubmitjobsperuser"], [f"name={qos}"]):
        if (most := _number(row["maxsubmitjobsperuser"])) is not None:
            taken = sum(job[2] == qos for job in jobs)
            limits.append(Limit(most, taken, f"MaxSubmitJobsPerUser of QOS {qos}"))
    return limits


def _for_partition(rows: Sequence[Mapping[str, str]], partition: str) -> Mapping[str, str] | None:
    """The association with this partition, else the one with none in particular."""
    for wanted in (partition, ""):
        for row in rows:
            if row["partition"] == wanted:
                return row
    return None


def _rows(what: str, fields: Sequence[str], where: Iterable[str]) -> list[dict[str, str]]:
    command = ["sacctmgr", "--noheader", "--parsable2", "show", what, *where, f"format={','.join(fields)}"]
    lines = (commands.ask(command) or "").splitlines()
    return [
        dict(zip(fields, line.split("|"), strict=True))
        for line in lines
        if line.count("|") == len(fields) - 1
    ]


def _number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
