"""Figures of the samples that the agents of all nodes took in an attempt of a `command`. Standard library
only."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import Attempt


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(map(operator.mul, values, weights)) / sum(weights)


def _sum(values: Sequence[float], _: Sequence[float]) -> float:
    return sum(values)


def _max(values: Sequence[float], _: Sequence[float]) -> float:
    return max(values)


_FIGURES = {
    "gpus": ("gpu", "gpus", _sum),
    "gpu_utilization": ("gpu", "utilization", _mean),
    "gpu_idle": ("gpu", "idle", _mean),
    "gpu_power_w": ("gpu", "power_mean_w", _mean),
    "gpu_energy_j": ("gpu", "energy_j", _sum),
    "gpu_memory_peak_bytes": ("gpu", "memory_used_peak_bytes", _max),
    "sampled_s": ("gpu", "sampled_s", _max),
    "processors": ("processes", "cpu_percent", _mean),
    "rss_peak_bytes": ("processes", "rss_peak_bytes", _max),
}
"""Name, part and field of `NodeHardware`, and how nodes are put together: means by their GPUs or ranks."""
_WEIGHTS = {"gpu": "gpus", "processes": "ranks"}


def read_hardware(attempt: Attempt) -> dict[str, float]:
    """The known figures by name, empty where no agent sampled. Of them `gpu_idle_s` is the time of a GPU in
    which no kernel ran, and `processors` those that a rank kept busy, without its loader processes."""
    records = [read_json_or_none(path) or {} for path in sorted(attempt.path.glob("hardware-node*.json"))]
    figures = {}
    for name, (part, field, combined) in _FIGURES.items():
        parts = [each for record in records if (each := record.get(part)) and each.get(field) is not None]
        if parts:
            figures[name] = combined(
                [each[field] for each in parts], [each[_WEIGHTS[part]] for each in parts]
            )
    if "processors" in figures:
        figures["processors"] /= 100
    if "gpu_idle" in figures:
        figures["gpu_idle_s"] = figures["gpu_idle"] * figures["sampled_s"]
    return figures
