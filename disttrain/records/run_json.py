"""The config of a `run.json` as plain data: ranks, placeholders; the figures that a script reports.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

PLACEHOLDERS = ("run", "run_dir", "checkpoint_dir", "attempt")
"""Placeholders of a run's own values, such as `{run_dir}`, which its nodes fill in. A config keeps them as
text, so that the key of a run does not depend on its folder. A word with a placeholder has its literal braces
doubled. In a word without one, braces are literal."""
_TOKEN = re.compile(rf"{{{{|}}}}|{{({'|'.join(PLACEHOLDERS)})}}")


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
    if values is None or "schema_version" in values:
        return {}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def has_placeholder(word: str) -> bool:
    """Whether a word of a config has a placeholder."""
    return any(f"{{{name}}}" in word for name in PLACEHOLDERS)


def differs_by_run(word: str) -> bool:
    """Whether a word of a config has a placeholder with another value in each run of a sweep."""
    return any(f"{{{name}}}" in word for name in PLACEHOLDERS if name != "attempt")


def fill(config: Mapping[str, Any], run: RunDir, attempt: int) -> dict[str, Any]:
    """A config of `run.json` with the values of the run in its `command` and in `job.env`."""
    values = (run.name, run.path.absolute(), run.checkpoints.absolute(), attempt)
    texts = dict(zip(PLACEHOLDERS, map(str, values), strict=True))

    def filled(word: str) -> str:
        if not has_placeholder(word):
            return word
        return _TOKEN.sub(lambda match: texts[match[1]] if match[1] else match[0][0], word)

    env = {name: filled(text) for name, text in config["job"]["env"].items()}
    command = {"command": [*map(filled, config["command"])]} if "command" in config else {}
    return {**config, **command, "job": {**config["job"], "env": env}}
