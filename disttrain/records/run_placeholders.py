"""Placeholders of a run's own values, such as `{run_dir}`, which its nodes fill in. Standard library only.

A config keeps them as text, so that the key of a run does not depend on its folder. A word with a placeholder
has its literal braces doubled. In a word without one, braces are literal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from disttrain.records.run_directory import RunDir

NAMES = ("run", "run_dir", "checkpoint_dir", "attempt")
_TOKEN = re.compile(rf"{{{{|}}}}|{{({'|'.join(NAMES)})}}")


def has_placeholder(word: str) -> bool:
    """Whether a word of a config has a placeholder."""
    return any(f"{{{name}}}" in word for name in NAMES)


def differs_by_run(word: str) -> bool:
    """Whether a word of a config has a placeholder with another value in each run of a sweep."""
    return any(f"{{{name}}}" in word for name in NAMES if name != "attempt")


def fill(config: Mapping[str, Any], run: RunDir, attempt: int) -> dict[str, Any]:
    """A config of `run.json` with the values of the run in its `command` and in `job.env`."""
    checkpoints = run.checkpoints.absolute()
    values = dict(zip(NAMES, (run.name, run.path.absolute(), checkpoints, attempt), strict=True))

    def filled(word: str) -> str:
        if not has_placeholder(word):
            return word
        return _TOKEN.sub(lambda found: str(values[found[1]]) if found[1] else found[0][0], word)

    job = config["job"]
    made = {**config, "job": {**job, "env": {name: filled(text) for name, text in job["env"].items()}}}
    if "command" in config:
        made["command"] = [filled(word) for word in config["command"]]
    return made
