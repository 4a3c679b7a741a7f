"""Figures that no run can have: a run with one of them is named and set aside. The only such check."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from analysis.read.steps import Steps
from disttrain.config.dotted_keys import get_key
from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES

MOST = 1e12
"""Seconds, steps, ranks or samples per second above which a figure is an error."""
_MOST_WHOLE = 2**63 - 1
_SMALLEST = 1e-12
_LEAST = {
    **dict.fromkeys(("world_size", "nodes", "ranks_per_node"), 1),
    **dict.fromkeys(("local_batch_size", "accumulation", "global_batch_size"), 1),
    **dict.fromkeys(("samples_per_s", "samples_per_s_per_rank", "tokens_per_s", "measured_s"), _SMALLEST),
}
"""Least value of a figure; 0 for others."""
_LARGE_UNITS = ("bytes", "flops", "parameters")
"""Parts of the names of figures that may be larger than `MOST`."""
_PARTS = ("step_time", "gpu", "processes", "comm")
"""Records within `metrics.json` whose figures are checked."""
_COUNT = Annotated[int, msgspec.Meta(ge=1, le=int(MOST))]
_WHOLE = Annotated[int, msgspec.Meta(ge=0, le=int(MOST))]
_CONFIG: dict[str, Any] = {
    **dict.fromkeys(("resources.nodes", "resources.gpus_per_node", "resources.threads_per_rank"), _COUNT),
    **dict.fromkeys(("train.steps", "telemetry.warmup_steps"), _WHOLE),
    **dict.fromkeys(("model.kind", "data.kind"), str),
    "job.time_limit_min": float,
}
"""Types of the values of a configuration that are used."""
_PERCENTILES = ("min_s", "p50_s", "p95_s", "p99_s", "max_s")
_SAME = 1.1
"""Ratio of two records of one quantity above which one is wrong: ranks differ a little, and are rounded."""
_BATCHES = 2.0
"""The same for figures that a varying batch moves: that of a training loop of the user may vary."""
_SUM = 0.01
"""Share of a step by which its phases may miss it, beyond rounding to microseconds."""


def impossible_config(config: dict[str, Any]) -> str:
    """The first value of a recorded configuration that no run can have, with its key; else empty."""
    for key, kind in _CONFIG.items():
        try:
            msgspec.convert(get_key(config, key), kind | None)
        except msgspec.ValidationError:
            return f"{key} is {get_key(config, key)!r}"
    return ""


def impossible_figure(metrics: Metrics, config: dict[str, Any]) -> str:
    """The first figure of `metrics.json` that no run can have, or that contradicts another one or `run.json`;
    else empty."""
    figures = dict(metrics) | {f"composition.{name}": value for name, value in metrics.composition.items()}
    for part in _PARTS:
        figures |= {f"{part}.{name}": value for name, value in getattr(metrics, part) or ()}
    for name, value in figures.items():
        if isinstance(value, int | float) and not _LEAST.get(name, 0) <= value <= MOST:
            is_large = any(unit in name for unit in _LARGE_UNITS) and MOST < value <= _MOST_WHOLE
            if not is_large:
                return f"{name} is {value:.6g}"
    return _contradiction(metrics, config)


def _contradiction(metrics: Metrics, config: dict[str, Any]) -> str:
    """Two figures of one quantity that differ."""
    if get_key(config, "resources.nodes") not in (None, metrics.nodes):
        return f"nodes is {metrics.nodes}, and that of run.json {get_key(config, 'resources.nodes')}"
    if metrics.world_size != metrics.nodes * metrics.ranks_per_node:
        return f"world_size is {metrics.world_size}, and nodes x ranks_per_node another number"
    of_replica, world_size = metrics.local_batch_size * metrics.accumulation, metrics.world_size
    # the stages of a pipeline share a replica; the batch of a training loop of the user is rounded
    if not of_replica - world_size < metrics.global_batch_size < (of_replica + 1) * world_size:
        return f"global_batch_size is {metrics.global_batch_size}, and {of_replica} that of a replica"
    if not metrics.measured_s or not metrics.measured_steps:
        return ""
    step_s = metrics.measured_s / metrics.measured_steps
    times = metrics.step_time
    values = [getattr(times, name) for name in _PERCENTILES] if times else []
    if values != sorted(values):
        return f"step_time has {', '.join(_PERCENTILES)} in another order"
    phases_s = [value for value in metrics.composition.values() if value is not None]
    rate = metrics.global_batch_size / step_s
    pairs = (
        ("samples_per_s", metrics.samples_per_s, "global_batch_size / step", rate, _BATCHES),
        ("step_time.mean_s", times.mean_s if times else None, "measured_s / measured_steps", step_s, _SAME),
        ("the sum of composition", sum(phases_s) if phases_s else None, "the step", step_s, _SAME),
    )  # fmt: skip
    for name, value, other, expected, most in pairs:
        if value is not None and not expected / most <= value <= expected * most:
            return f"{name} is {value:.6g}, and {other} {expected:.6g}"
    return ""


def impossible_steps(steps: Steps, metrics: Metrics | None) -> str:
    """The first figure of the step records that no step has, or that the metrics of a finished run
    contradict; else empty.

    Seconds and counts are checked, phases sum to their step, and the measured steps are as long as those of
    `metrics.json`.
    """
    columns = {"step": steps.step, "steps": steps.counts, "samples": steps.samples, **steps.seconds}
    values = np.array([*columns.values()], dtype=np.float64)
    least = np.array([{"steps": 1, "step_s": _SMALLEST}.get(name, 0) for name in columns])
    for column, row in np.argwhere((values < least[:, None]) | (values > MOST))[:1]:
        return f"{[*columns][column]} is {values[column, row]:.6g}{_place(steps, row)}"
    step_s = steps.seconds["step_s"]
    phases = np.array([steps.seconds[name] for name in PHASES])
    known = ~np.isnan(phases).all(axis=0)
    missed = np.abs(np.nansum(phases, axis=0) - step_s) > _SUM * step_s + 1e-5 * steps.counts
    for row in np.flatnonzero(known & missed)[:1]:
        return f"phases do not sum to step_s{_place(steps, row)}"
    recorded, mean_s = steps.lowest_rank.counts.sum(), steps.mean_s("step_s")
    if metrics is None or mean_s is None or not metrics.measured_s or 2 * recorded < metrics.measured_steps:
        return ""
    expected_s = metrics.measured_s / metrics.measured_steps
    if expected_s / _SAME <= mean_s <= expected_s * _SAME:
        return ""
    return f"the mean measured step is {mean_s:.6g} s, and that of metrics.json {expected_s:.6g} s"


def _place(steps: Steps, row: int) -> str:
    return f" in step {steps.step[row]} of rank {steps.rank[row]}"
