"""Rank and world size from torchrun's environment variables. Imports without torch."""

from __future__ import annotations

import os
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
