"""The parts of the telemetry, timed where they run: what `overhead.py` shows beside its ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from disttrain.telemetry.hardware.sampler import HardwareSampler
from disttrain.telemetry.run import RunTelemetry

METHODS: dict[str, tuple[type, str]] = {
    "losses of all ranks, every `log_every` steps": (RunTelemetry, "_reduce"),
    "log, scalars, `progress.json`, once a second": (RunTelemetry, "_write_progress"),
    "records and summary, every `flush_every_s`": (RunTelemetry, "_flush"),
    "sample of the processes, once a second, beside the steps": (HardwareSampler, "_sample"),
}
PROFILED = "a step under the profiler, `telemetry.profiled_steps` times in a run"


@dataclass
class Part:
    """Seconds that each call of a part took."""

    seconds: list[float] = field(default_factory=list)


@contextmanager
def timed() -> Iterator[dict[str, Part]]:
    """Within, calls of the parts are timed, for a microsecond more each."""
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
