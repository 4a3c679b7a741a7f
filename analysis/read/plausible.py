"""Figures that no run can have: a record with one of them is named and not used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from disttrain.config.dotted_keys import get_key
from disttrain.records.metrics import Metrics

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
_CONTRADICTION = 2.0
"""Ratio of two figures of one quantity above which one is wrong: the batch of a training loop of the user may
vary."""


def impossible_number(content: Any, name: str = "") -> str:
    """The first number of a JSON value that is not finite or beyond 64 bits, with its field; else empty."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        found = (impossible_number(value, f"{name}.{key}" if name else str(key)) for key, value in items)
        return next(filter(None, found), "")
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
    if not isinstance(limit_min, int | float | None):
        return f"job.time_limit_min is {limit_min!r}"
    kinds = (key for key in ("model.kind", "data.kind") if not isinstance(get_key(config, key), str | None))
    return next((f"{key} is {get_key(config, key)!r}" for key in kinds), "")


def impossible_figure(metrics: Metrics) -> str:
    """The first figure of `metrics.json` that no run can have, with its field; else empty."""
    for name, value, least, most in _figures(metrics):
        if value is not None and not least <= value <= most:
            return f"{name} is {value:.6g}"
        if value == 0 and name in _POSITIVE and metrics.measured_steps:
            return f"{name} is 0"
    if not metrics.measured_s or not metrics.measured_steps:
        return ""
    step_s = metrics.measured_s / metrics.measured_steps
    times = metrics.step_time
    values = [getattr(times, name) for name in _PERCENTILES] if times else []
    if values != sorted(values):
        return f"step_time has {', '.join(_PERCENTILES)} in another order"
    rate = metrics.global_batch_size / step_s
    if metrics.samples_per_s and _contradict(metrics.samples_per_s, rate):
        return f"samples_per_s is {metrics.samples_per_s:.6g}, and global_batch_size / step {rate:.6g}"
    return ""


def _figures(metrics: Metrics) -> Iterator[tuple[str, float | None, float, float]]:
    """Field, value, least and largest value."""
    for name, value in metrics:
        if isinstance(value, int | float):
            large = any(part in name for part in _LARGE_UNITS)
            yield name, value, int(name in _COUNTS), _MOST_WHOLE if large else MOST
    yield from ((f"composition.{name}", value, 0, MOST) for name, value in metrics.composition.items())
    for name in ("mean_s", "std_s", *_PERCENTILES) if metrics.step_time else ():
        yield f"step_time.{name}", getattr(metrics.step_time, name), 0, MOST


def _contradict(one: float, other: float) -> bool:
    return not other / _CONTRADICTION <= one <= other * _CONTRADICTION
