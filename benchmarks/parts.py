"""Time single parts of the telemetry while they run, for `overhead.py`.

| part | runs |
|---|---|
| `reduce_losses` | every `telemetry.log_every` steps: losses and times of all ranks |
| `write_progress` | once a second: scalars; more rarely a log line and `progress.json` |
| `flush` | every `telemetry.flush_every_s`: records; more rarely the summary |
| `hardware_sample` | once a second, beside the steps |
| `profiled_step` | `telemetry.profiled_steps` times in a run of several ranks |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from disttrain.telemetry.hardware.sampler import HardwareSampler
from disttrain.telemetry.run import RunTelemetry

METHODS: dict[str, tuple[type, str]] = {
    "reduce_losses": (RunTelemetry, "_reduce"),
    "write_progress": (RunTelemetry, "_write_progress"),
    "flush": (RunTelemetry, "_flush"),
    "hardware_sample": (HardwareSampler, "_sample"),
}
PROFILED = "profiled_step"


@dataclass
class Part:
    """Seconds of each call of a part."""

    seconds: list[float] = field(default_factory=list)


@contextmanager
def timed() -> Iterator[dict[str, Part]]:
    """Time all calls of the parts within the context; each call takes 1 us longer."""
    parts = {name: Part() for name in METHODS}
    plain = {name: getattr(owner, method) for name, (owner, method) in METHODS.items()}
    for name, (owner, method) in METHODS.items():
        setattr(owner, method, _wrapped(plain[name], parts[name]))
    try:
        yield parts
    finally:
        for name, (owner, method) in METHODS.items():
            setattr(owner, method, plain[name])


def _wrapped(method: Callable[..., Any], part: Part) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            part.seconds.append(time.perf_counter() - began)

    return call
