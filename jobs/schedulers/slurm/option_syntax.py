"""Syntax of the values in a batch script, and options that a site profile cannot set.

A checked value cannot end its line, because it holds no control character and `quoting` quotes it. The code
hash does not cover this module, which only refuses values. Pure functions, standard library only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*"
NAMES = rf"{_WORD}(,{_WORD})*"
"""A partition, account, QOS or reservation, or several separated by commas."""
_NODE = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])*"
NODES = rf"{_NODE}(,{_NODE})*"
"""A node list, such as `gpu[01-04,7],login1`."""
FEATURES = r"[A-Za-z0-9_\[(!][A-Za-z0-9_.:=+&|*()\[\],!-]*"
"""A constraint, such as `a100&nvme` or `[rack1|rack2]`; its brackets must be `paired`, too."""
MEMORY = r"\d+[KMGT]?"
ADDRESS = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?"
MODULE = r"[A-Za-z0-9_][A-Za-z0-9_.:+/=@-]*"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
OPTION = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
"""A long option of sbatch or srun, without its dashes."""

_OWN_RECORDS = "the run's state is read by means of it"
_OWN_SHAPE = "the shape of the job comes from resources.nodes and resources.gpus_per_node"
_OWN_GPUS = "set the profile's gpus and gpu_type"
_OWN_ENVIRONMENT = "the environment of a run is in its env.json: set the profile's environment"
_ONE_SHOT = "it would change the output of sbatch"

SBATCH_TAKEN: dict[str, str] = {
    "nodes": _OWN_SHAPE,
    "ntasks": _OWN_SHAPE,
    "tasks": _OWN_SHAPE,
    "ntasks-per-node": _OWN_SHAPE,
    "tasks-per-node": _OWN_SHAPE,
    "ntasks-per-gpu": _OWN_SHAPE,
    "array": "the runs of a shape share an array already",
    "time": "set job.time_limit_min",
    "output": _OWN_RECORDS,
    "error": _OWN_RECORDS,
    "input": "a job has no input",
    "open-mode": "a job that starts again appends to its log",
    "job-name": _OWN_RECORDS,
    "comment": _OWN_RECORDS,
    "requeue": "whether a run starts again follows from the cause of its end; only `expedite` may be given",
    "no-requeue": "whether a run starts again follows from the cause of its end",
    "signal": "set job.stop_lead_s",
    "export": _OWN_ENVIRONMENT,
    "export-file": _OWN_ENVIRONMENT,
    "get-user-env": _OWN_ENVIRONMENT,
    "chdir": "a run has full paths of its folders",
    "clusters": "submit where that cluster is the default one: only its jobs are queried",
    "wrap": _ONE_SHOT,
    "test-only": "give submit.py --test-only",
    "parsable": _ONE_SHOT,
    "wait": "give submit.py --wait",
    "help": _ONE_SHOT,
    "usage": _ONE_SHOT,
    "version": _ONE_SHOT,
    "gpus": _OWN_GPUS,
    "gpus-per-node": _OWN_GPUS,
    "gpus-per-task": _OWN_GPUS,
    "gpus-per-socket": _OWN_GPUS,
    "tres-per-task": "set the profile's cpus_per_task, gpus and gpu_type",
    "external": "a run has a batch script",
    "cpus-per-task": "set the profile's cpus_per_task, which srun gets as well",
    "partition": "set the profile's partition",
    "account": "set the profile's account",
    "qos": "set the profile's qos",
    "constraint": "set the profile's constraint",
    "reservation": "set the profile's reservation",
    "exclude": "set the profile's exclude",
    "mem": "set the profile's memory",
    "exclusive": "set the profile's exclusive",
    "mail-user": "set the profile's mail_user",
    "mail-type": "set the profile's mail_type",
    "wckey": "set the profile's wckey",
    "container": "set the profile's container",
}
"""Options of sbatch that a profile cannot set, each with the reason or the key to set instead."""

_ALL_NODES = "one task runs on each node of the job"
_ALL_GPUS = "all GPUs of a node belong to its one task"
_ALL_MEMORY = "set it for sbatch: srun follows"
_TOLERANT = "after one node fails, the others need time to record how they ended"

SRUN_TAKEN: dict[str, str] = {
    "nodes": _ALL_NODES,
    "ntasks": _ALL_NODES,
    "tasks": _ALL_NODES,
    "ntasks-per-node": _ALL_NODES,
    "tasks-per-node": _ALL_NODES,
    "ntasks-per-gpu": _ALL_NODES,
    "nodelist": _ALL_NODES,
    "nodefile": _ALL_NODES,
    "exclude": "set the profile's exclude",
    "relative": _ALL_NODES,
    "cpus-per-task": "set the profile's cpus_per_task, which sbatch gets as well",
    "mem-per-cpu": _ALL_MEMORY,
    "mem-per-gpu": _ALL_MEMORY,
    "tres-per-task": _ALL_GPUS,
    "gpus": _ALL_GPUS,
    "gpus-per-node": _ALL_GPUS,
    "gpus-per-socket": _ALL_GPUS,
    "gpus-per-task": _ALL_GPUS,
    "kill-on-bad-exit": _TOLERANT,
    "wait": _TOLERANT,
    "export": _OWN_ENVIRONMENT,
    "output": _OWN_RECORDS,
    "error": _OWN_RECORDS,
    "input": "a job has no input",
    "open-mode": "a job that starts again appends to its log",
    "time": "set job.time_limit_min",
    "signal": "set job.stop_lead_s",
    "chdir": "a run has full paths of its folders",
    "jobid": "a run starts in its own job",
    "no-allocate": "a run starts in its own job",
    "multi-prog": "srun starts the agent on each node",
    "preserve-env": "the environment would override the script",
    "pty": "a job has no terminal",
    "test-only": "give submit.py --test-only",
    "help": "srun would start nothing",
    "usage": "srun would start nothing",
    "version": "srun would start nothing",
    "container-image": "set the profile's container",
    "container-mounts": "set the profile's container",
}
"""Options of srun that a profile cannot set, each with the reason or the key to set instead."""


def unprintable(text: str) -> str | None:
    """The first control character or line separator; None without one."""
    return next((char for char in text if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")), None)


def clean(text: str) -> str:
    """Return `text`. Raises `ValueError` for a character that ends or garbles a line."""
    bad = unprintable(text)
    if bad is not None:
        raise ValueError(f"holds a control character ({bad!r}), which would end or garble its line")
    return text


def matching(text: str, pattern: str, what: str) -> str:
    """Return `text`. Raises `ValueError` unless the whole text matches `pattern`."""
    if not re.fullmatch(pattern, clean(text)):
        raise ValueError(f"is not {what}")
    return text


def paired(text: str) -> str:
    """Return `text`. Raises `ValueError` for a bracket or parenthesis without its counterpart."""
    awaited = []
    for sign in text:
        if sign in "[(":
            awaited.append("])"["[(".index(sign)])
        elif sign in "])" and (not awaited or awaited.pop() != sign):
            raise ValueError(f"has an unmatched {sign!r}")
    if awaited:
        raise ValueError(f"lacks a {awaited[-1]!r}")
    return text


def command(text: str) -> str:
    """Return `text`. Raises `ValueError` for a leading dash, which would make a command or file an option."""
    if clean(text).startswith("-"):
        raise ValueError("begins with a dash, like an option")
    return text


def taken(option: str, reasons: Mapping[str, str]) -> str | None:
    """Why a profile cannot set this option; None if it can.

    Slurm accepts unique prefixes of long options, such as `requ` for `requeue`, so these are checked, too.
    """
    if option in reasons:
        return reasons[option]
    meant = next((name for name in reasons if name.startswith(option)), None)
    return None if meant is None else f"it abbreviates {meant}: {reasons[meant]}"
