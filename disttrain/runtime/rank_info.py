"""What torchrun tells a rank through its environment. Imports without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from disttrain.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """This rank among the ranks: `rank` of `size`, `local_rank` of `local_size` on its node."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @property
    def nodes(self) -> int:
        return self.size // self.local_size


def place() -> Place:
    """Read torchrun's variables; without torchrun, the only rank.

    Raises `ConfigError` when nodes hold unequal numbers of ranks.
    """
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    found = Place(*(int(os.environ.get(name, default)) for name, default in names.items()))
    if found.size % found.local_size:
        raise ConfigError(f"WORLD_SIZE={found.size} is not a multiple of LOCAL_WORLD_SIZE={found.local_size}")
    return found
