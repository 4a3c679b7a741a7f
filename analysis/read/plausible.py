"""Figures that no run can have: a run with one of them is named and set aside. The only such check."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis.read.steps import SECONDS, Steps
from disttrain.config.dotted_keys import get_key
from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES

MOST = 1e12
"""Seconds, steps, ranks or samples per second above which a figure is an error."""
_MOST_WHOLE = 2**63 - 1
_COUNTS = ("world_size", "nodes", "ranks_per_node", "local_batch_size", "accumulation", "global_batch_size")
_POSITIVE = ("samples_per_s", "samples_per_s_per_rank", "tokens_per_s", "measured_s")
_LARGE_UNITS = ("bytes", "flops", "parameters")
"""Parts of the names of figures that may be larger."""
_CONFIG = {
    **dict.fromkeys(("resources.nodes", "resources.gpus_per_node", "resources.threads_per_rank"), 1),
    **dict.fromkeys(("train.steps", "telemetry.warmup_steps"), 0),
}
"""Least value of the whole numbers of a configuration that the table of runs holds."""
_PERCENTILES = ("min_s", "p50_s", "p95_s", "p99_s", "max_s")
_SAME = 1.1
"""Ratio of two records of one quantity above which one is wrong: ranks differ a little, and are rounded."""
_BATCHES = 2.0
"""The same for figures that a varying batch moves: that of a training loop of the user may vary."""
_SUM = 0.01
"""Share of a step by which its phases may miss it, beyond rounding to microseconds."""


def impossible_number(content: Any, name: str = "") -> str:
    """The first number of a JSON value that is not finite or beyond 64 bits, with its field; else empty."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        texts = (impossible_number(value, f"{name}.{key}" if name else str(key)) for key, value in items)
        return next(filter(None, texts), "")
    if isinstance(content, float) and not math.isfinite(content):
        return f"{name} is {content}"
    if isinstance(content, int) and abs(content) > _MOST_WHOLE:
        return f"{name} is beyond 64 bits"
    return ""


def impossible_config(config: dict[str, Any]) -> str:
    """The first value of a recorded configuration that no run can have, with its key; else empty."""
    for key, least in _CONFIG.items():
        value = get_key(config, key)
        if value is not None and (type(value) is not int or not least <= value <= MOST):
            return f"{key} is {value!r}"
    limit_min = get_key(config, "job.time_limit_min")
    if not isinstance(limit_min, int | float | None) or isinstance(limit_min, bool):
        return f"job.time_limit_min is {limit_min!r}"
    kinds = (key for key in ("model.kind", "data.kind") if not isinstance(get_key(config, key), str | None))
    return next((f"{key} is {get_key(config, key)!r}" for key in kinds), "")


def impossible_figure(metrics: Metrics, config: dict[str, Any]) -> str:
    """The first figure of `metrics.json` that no run can have, or that contradicts another one or `run.json`;
    else empty."""
    for name, value, least, most in _figures(metrics):
        if value is not None and not least <= value <= most:
            return f"{name} is {value:.6g}"
        if value == 0 and name in _POSITIVE and metrics.measured_steps:
            return f"{name} is 0"
    return _contradiction(metrics, config)


def _figures(metrics: Metrics) -> Iterator[tuple[str, float | None, float, float]]:
    """Field, value, least and largest value."""
    for name, value in metrics:
        if isinstance(value, int | float):
            large = any(part in name for part in _LARGE_UNITS)
            yield name, value, int(name in _COUNTS), _MOST_WHOLE if large else MOST
    yield from ((f"composition.{name}", value, 0, MOST) for name, value in metrics.composition.items())
    for name in ("mean_s", "std_s", *_PERCENTILES) if metrics.step_time else ():
        yield f"step_time.{name}", getattr(metrics.step_time, name), 0, MOST


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

    Seconds and counts are checked, phases sum to their step, and the measured steps are as many and as long
    as those of `metrics.json`.
    """
    whole = {"step": (steps.step, 0), "steps": (steps.counts, 1), "samples": (steps.samples, 0)}
    for name, (values, least) in (whole | {name: (steps.seconds[name], 0) for name in SECONDS}).items():
        bad = np.flatnonzero((values < least) | (values > MOST))
        if bad.size:
            return f"{name} is {values[bad[0]]:.6g}{_place(steps, bad[0])}"
    step_s = steps.seconds["step_s"]
    if (bad := np.flatnonzero(step_s == 0)).size:
        return f"step_s is 0{_place(steps, bad[0])}"
    phases = np.array([steps.seconds[name] for name in PHASES])
    known = ~np.isnan(phases).all(axis=0)
    missed = np.abs(np.nansum(phases, axis=0) - step_s) > _SUM * step_s + 1e-5 * steps.counts
    if (bad := np.flatnonzero(known & missed)).size:
        return f"phases do not sum to step_s{_place(steps, bad[0])}"
    return "" if metrics is None else _other_steps(steps, metrics)


def _place(steps: Steps, row: int) -> str:
    return f" in step {steps.step[row]} of rank {steps.rank[row]}"


def _other_steps(steps: Steps, metrics: Metrics) -> str:
    """Measured steps of another number than in `metrics.json`, where all steps are recorded, or of another
    duration."""
    first = steps.lowest_rank
    recorded = int(first.counts.sum())
    kept = int(steps.counts[steps.kept & (steps.rank == steps.rank.min(initial=0))].sum())
    if recorded != metrics.measured_steps and kept >= metrics.steps:
        return f"{recorded} steps are measured, and those of metrics.json {metrics.measured_steps}"
    mean_s = steps.mean_s("step_s")
    if mean_s is None or not metrics.measured_s or 2 * recorded < metrics.measured_steps:
        return ""
    step_s = metrics.measured_s / metrics.measured_steps
    if step_s / _SAME <= mean_s <= step_s * _SAME:
        return ""
    return f"the mean measured step is {mean_s:.6g} s, and that of metrics.json {step_s:.6g} s"
