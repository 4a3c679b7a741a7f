"""Read a cluster with Slurm's commands, each with a time limit and allowed to fail. Nothing is changed."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from typing import Any, TypeVar

from jobs.schedulers.slurm import commands
from jobs.schedulers.slurm.doctor import parsing
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config

_TIMEOUT_S = 10.0
_DAYS = 7
"""Accounting is searched back for this time."""
_SACCTMGR_SHOW = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
_T = TypeVar("_T")


def cluster_facts() -> ClusterFacts:
    """The facts of the cluster. Without an answer of the controller, only the configuration was tried."""
    user = _user()
    refusals: dict[str, str] = {}

    def read(part: str, command: list[str], parse: Callable[[str], _T]) -> _T | None:
        try:
            return parse(commands.query(command, _TIMEOUT_S))
        except commands.SlurmCommandError as why:
            refusals[part] = f"`{' '.join(command[:3])}`: {why}"
            return None

    config = read("config", ["scontrol", "show", "config"], parsing.config)
    if config is None:
        return ClusterFacts(user, refusals=refusals)
    facts: dict[str, Any] = {
        "partitions": read("partitions", ["scontrol", "show", "partition", "--oneliner"], parsing.partitions),
        "nodes": read("nodes", ["sinfo", "--noheader", "--Node", "-o", parsing.NODE_FORMAT], parsing.nodes),
        "queue": read("queue", ["squeue", "--noheader", "-o", parsing.QUEUE_FORMAT], parsing.queue),
        "clock_offset_s": _clock_offset_s(),
    }
    for part, command in (("partitions", "scontrol show partition"), ("nodes", "sinfo")):
        if facts[part] is not None and not facts[part]:  # PrivateData may hide them from this user
            facts[part] = None
            refusals[part] = f"`{command}` shows this user none"
    if facts["clock_offset_s"] is None:
        refusals["clock"] = "`sdiag` gives no time"
    if config.has_accounting:
        facts |= {
            "associations": read("associations", _associations(user, config), parsing.associations),
            "default_account": read("account", _default_account(user), lambda text: text.strip() or None),
            "finished": read("finished", _sacct(user), parsing.finished),
        }
    return ClusterFacts(user, config, refusals=refusals, **facts)


def _default_account(user: str) -> list[str]:
    return [*_SACCTMGR_SHOW, "user", user, "format=DefaultAccount"]


def _associations(user: str, config: Config) -> list[str]:
    """Associations of the user on this cluster: the accounting of a site may have several clusters."""
    name = config.text("ClusterName")
    cluster = [f"cluster={name}"] if name else []
    fields = "format=Account,Partition,QOS,MaxJobs,MaxSubmit,MaxWall"
    return [*_SACCTMGR_SHOW, "assoc", f"user={user}", *cluster, fields]


def _sacct(user: str) -> list[str]:
    fields = "JobID,State,Partition,Account,AllocTRES"
    days = f"--starttime=now-{_DAYS}days"
    return ["sacct", "--noheader", "--parsable2", "--allocations", f"--user={user}", days, "-o", fields]


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
