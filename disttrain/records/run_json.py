"""The config of a `run.json` as plain data, and the figures a script reports. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir


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


def read_reported(run: RunDir) -> dict[str, float]:
    """The numbers of a `metrics.json` that a script wrote, by name; empty without one.

    A `metrics.json` of the telemetry has a `schema_version`. Other values than finite numbers are left out.
    """
    values = read_json_or_none(run.metrics)
    if not isinstance(values, dict) or "schema_version" in values:
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
