"""This process: its rank by torchrun's environment, its parent, its waits. Imports without torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from disttrain.errors import ConfigError


@dataclass(frozen=True)
class RankInfo:
    """Position of this rank: `rank` of `size` in the world, `local_rank` of `local_size` on its node."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def nodes(self) -> int:
        """Number of nodes; every node holds `local_size` ranks."""
        return self.size // self.local_size


def rank_info() -> RankInfo:
    """Read torchrun's variables. Without torchrun: rank 0 of 1.

    Raises `ConfigError` when nodes hold unequal numbers of ranks.
    """
    defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    info = RankInfo(*(int(os.environ.get(name, default)) for name, default in defaults.items()))
    if info.size % info.local_size:
        raise ConfigError(f"WORLD_SIZE={info.size} is not a multiple of LOCAL_WORLD_SIZE={info.local_size}")
    return info


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies (PR_SET_PDEATHSIG); without effect except on
    Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


SPIN_S = 100e-6
"""Seconds before a deadline that are spun: a sleep may return this much late."""


def wait_until(
    deadline: float,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return at `deadline`, a time of `now` in seconds; at once if that has passed."""
    left = deadline - now()
    if left > SPIN_S:
        sleep(left - SPIN_S)
    while now() < deadline:
        pass
