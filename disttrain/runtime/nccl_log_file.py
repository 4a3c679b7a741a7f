"""The file of NCCL's log: requested before the process group, and ended after the first steps.

NCCL reads its variables once, when it first starts. One line for each collective (subsystem TUNING) makes the
log grow with the run, so the log ends with the warm-up steps: the file descriptor then leads to `/dev/null`.
Imports without torch.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from disttrain.records.run_directory import Attempt
from disttrain.runtime.process import RankInfo

SUBSYSTEMS = ("INIT", "BOOTSTRAP", "ENV", "NET", "GRAPH")
"""Subsystems that write while communicators start and connect, and never in a step."""
EACH_COLLECTIVE = "TUNING"
"""Subsystem that writes a line for each collective of rank 0: its algorithm and its protocol."""
_DESCRIPTORS = Path("/proc/self/fd")
_replaced: dict[str, str | None] = {}
"""Variables that `request` set, with their values before; None: unset."""


def request(attempt: Attempt, info: RankInfo, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Set NCCL's variables for a log in the attempt's folder; whether they were set.

    The first rank of each node of a run with several ranks writes one. Where NCCL_DEBUG is WARN or VERSION,
    the log has warnings of the whole run, and none of the lines that need an end. A higher level, or a file
    given by the user, is left alone.
    """
    level = environ.get("NCCL_DEBUG", "")
    given = {"NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"} & environ.keys()
    if info.size == 1 or info.local_rank != 0 or given or level.upper() not in ("", "WARN", "VERSION"):
        return False
    variables = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": ",".join(SUBSYSTEMS if level else (*SUBSYSTEMS, EACH_COLLECTIVE)),
        "NCCL_DEBUG_FILE": str(attempt.nccl_log(info.rank // info.local_size)),
    }
    _replaced.update({name: environ.get(name) for name in variables})
    environ.update(variables)
    return True


def environment_of_children() -> dict[str, str]:
    """The environment without the request: NCCL in another process would overwrite the file."""
    own = {name: value for name, value in os.environ.items() if name not in _replaced}
    return own | {name: value for name, value in _replaced.items() if value is not None}


def end(path: Path, descriptors: Path = _DESCRIPTORS) -> None:
    """Lead further lines of a log with one line for each collective to `/dev/null`.

    A log without these lines stays open, for the warnings of later steps.
    """
    if EACH_COLLECTIVE not in os.environ.get("NCCL_DEBUG_SUBSYS", "").split(","):
        return
    for number in _open_at(path, descriptors):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number, inheritable=False)
        os.close(null)


def _open_at(path: Path, descriptors: Path) -> list[int]:
    """File descriptors of this process that lead to `path`."""
    found = []
    real = os.path.realpath(path)
    for name in os.listdir(descriptors):
        try:
            target = os.readlink(descriptors / name)
        except OSError:  # the listing's own descriptor
            continue
        if target == real:
            found.append(int(name))
    return found
