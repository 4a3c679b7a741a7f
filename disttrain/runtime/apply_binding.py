"""Binding of a rank to processors: applied before torch starts threads, which inherit it. Torch-free.

The agent of the node chooses the processors (`jobs.fabric.plan_binding`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from disttrain.records.run_directory import PROCESSORS


def bind(environ: Mapping[str, str] = os.environ) -> None:
    """Bind this process to the processors of its local rank. Without any, nothing changes.

    Processors outside of the cpuset are refused by the kernel and change nothing either; `fabric.json` has
    the processors that the rank may use.
    """
    chosen = environ.get(PROCESSORS, "").split(";")
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    if local_rank < len(chosen) and chosen[local_rank]:
        with contextlib.suppress(OSError, ValueError):
            os.sched_setaffinity(0, {int(number) for number in chosen[local_rank].split(",")})
