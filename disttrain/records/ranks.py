"""Ranks and GPUs on a node, of a config as plain data. Standard library only: agents read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def gpus_per_rank(config: Mapping[str, Any]) -> int:
    """`Config.gpus_per_rank` for a config as plain data."""
    strategy = (config.get("parallel") or {}).get("strategy")
    return int(config["resources"]["gpus_per_node"]) if strategy == "dp" else 1


def ranks_per_node(config: Mapping[str, Any]) -> int:
    """Ranks on each node of a config as plain data."""
    return int(config["resources"]["gpus_per_node"]) // gpus_per_rank(config)


def asks_for_gpus(device: str) -> bool:
    """Whether `resources.device` means a GPU for each rank, where a job gets what it requests."""
    return device not in ("cpu", "shared")
