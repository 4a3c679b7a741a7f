"""Swept keys of runs and their values: the axes by which the runs of a sweep differ on purpose."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from analysis.read.run import Run
from disttrain.config.dotted_keys import get_key

_SHAPE = ("resources.nodes", "resources.gpus_per_node")


def swept_values(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By `path`: values of all keys that a sweep of these runs varies, by dotted key, from the config of runs
    whose own sweep does not vary the key. Lists and objects are JSON text."""
    own = {run.path: _axes(run) for run in runs}
    keys = sorted({key for axes in own.values() for key in axes} | _implied(runs))
    found = {}
    for run in runs:
        values = {key: own[run.path].get(key, get_key(run.config, key)) for key in keys}
        found[run.path] = {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in values.items()}
    return found


def _axes(run: Run) -> dict[str, Any]:
    """Declared axes; the `command` of a script is `script`, since `command` is that of `disttrain`."""
    axes = run.record.axes if run.record else {}
    return {"script" if key == "command" else key: value for key, value in axes.items()}


def _implied(runs: Sequence[Run]) -> set[str]:
    """Keys in which runs without declared axes (started by hand) of one shape differ.

    Repeats differ only in keys excluded from the run key; other differences were varied on purpose and must
    not be averaged over.
    """
    flat = [run.compared for run in runs if run.record and not run.record.axes]
    implied = set()
    for one, other in itertools.combinations(flat, 2):
        if all(one.get(key) == other.get(key) for key in _SHAPE):
            implied |= {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    if "train.local_batch_size" in implied:
        implied.discard("train.global_batch_size")  # follows from it and the shape
    return implied
