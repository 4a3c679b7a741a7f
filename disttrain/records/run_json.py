"""The config of a `run.json` as plain data: ranks, placeholders; the figures that a script reports.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir

PLACEHOLDERS = ("run", "run_dir", "checkpoint_dir", "attempt")
"""Placeholders of a run's own values, such as `{run_dir}`, which its nodes fill in. A config keeps them as
text, so that the key of a run does not depend on its folder. A word with a placeholder has its literal braces
doubled. In a word without one, braces are literal."""
CHECKPOINT = "checkpoint"
"""Placeholder of `job.resume_args` alone: the checkpoint that a start resumes from."""
LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "torchrun": (),
    "node": ("NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT"),
    "rank": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}
"""The values of `job.launcher`, each with the variables that `jobs.node.start_processes` sets for a process.
Their names in lower case are placeholders of the command."""


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


def of_processes(launcher: str) -> tuple[str, ...]:
    """Placeholders of a command with a value of each process."""
    return tuple(map(str.lower, LAUNCHERS[launcher]))


def has_placeholder(word: str, names: Iterable[str] = PLACEHOLDERS) -> bool:
    """Whether a word of a config has one of these placeholders."""
    return any(f"{{{name}}}" in word for name in names)


def differs_by_run(word: str) -> bool:
    """Whether a word of a config has a placeholder with another value in each run of a sweep."""
    return any(f"{{{name}}}" in word for name in PLACEHOLDERS if name != "attempt")


def fill(
    config: Mapping[str, Any], run: RunDir, attempt: int, checkpoint: Path | None = None
) -> dict[str, Any]:
    """A config of `run.json` with the values of the run in its `command` and in `job.env`.

    Words of the command with a placeholder of the processes keep that. `job.resume_args` follow the command
    of an attempt that resumes from a `checkpoint`.
    """
    values = (run.name, run.path.absolute(), run.checkpoints.absolute(), attempt)
    texts = dict(zip(PLACEHOLDERS, map(str, values), strict=True))
    later = of_processes(config["job"].get("launcher", "torchrun"))
    env = {name: filled(text, texts) for name, text in config["job"]["env"].items()}
    command = {}
    if "command" in config:
        command["command"] = [filled(word, texts, later) for word in config["command"]]
        if checkpoint is not None:
            texts[CHECKPOINT] = str(checkpoint)
            command["command"] += [filled(word, texts) for word in config["job"]["resume_args"]]
    return {**config, **command, "job": {**config["job"], "env": env}}


def filled(word: str, texts: Mapping[str, str], later: Collection[str] = ()) -> str:
    """A word with these texts in place of its placeholders.

    A word that has one of the placeholders `later` keeps its braces doubled, for the next call.
    """
    is_kept = has_placeholder(word, later)
    if not (is_kept or has_placeholder(word, texts)):
        return word

    def text(match: re.Match[str]) -> str:
        if match[1] not in texts:
            return match[0] if is_kept else match[0][0]
        return doubled(texts[match[1]]) if is_kept else texts[match[1]]

    return re.sub(rf"{{{{|}}}}|{{({'|'.join([*texts, *later])})}}", text, word)


def doubled(text: str) -> str:
    """A text with its braces doubled, which are then literal."""
    return text.replace("{", "{{").replace("}", "}}")
