"""A close look at some steps under PyTorch's profiler: samples of the communication, and a trace on request.

These steps are recorded like any other and left out of all figures, on all ranks.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from disttrain.config.sections import Config
from disttrain.records.communication import CommSummary
from disttrain.records.json_files import write_bytes, write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.telemetry import trace as traces
from disttrain.telemetry.collective_stats import CollectiveStats, describe, sampled_steps
from disttrain.telemetry.json_lines import drop_if_disk_full
from disttrain.telemetry.step_clock import OTHER, PhaseSeconds, StepClock
from disttrain.telemetry.trace import StepTrace
from disttrain.telemetry.trace_comparison import compare


class HasClock(Protocol):
    """Whoever says on a clock what begins in a step."""

    clock: StepClock


class ProfiledSteps:
    """Decides which steps are looked at, and looks at them."""

    def __init__(self, config: Config, attempt: Attempt, world: World, *, samples: bool, steps: int) -> None:
        self._world = world
        self._attempt = attempt
        self._sampler = CollectiveStats(attempt.comm(world.rank), world)
        first, last = config.profile.steps or (1, 0)
        self._asked = range(first, last + 1)
        self._traces = world.rank in config.profile.ranks
        spread = sampled_steps(
            config.telemetry.profiled_steps if samples else 0, config.telemetry.warmup_steps, steps
        )
        self.sampled = spread - set(self._asked)
        """Steps taken for their collectives."""
        self.steps = self.sampled | set(self._asked)
        """Steps to be taken within `at`."""
        self._profiler: profile | None = None
        self._seen: list[tuple[int, StepTrace]] = []

    @contextmanager
    def take(self, step: int, loop: HasClock) -> Iterator[None]:
        """Within, `loop` takes `step`. It begins when all ranks are ready for it, and later ones of a trace
        when this rank is; what happened since the last step belongs to none. All ranks together."""
        if self._profiler is None and (step in self.sampled or self._traces):
            self._profiler = _profiler(self._world.device)
            self._profiler.start()
            self._drain()
        if step in self.sampled or step in self._asked[:1]:
            # the profiler takes longer to start on some ranks, for which the others would seem to wait
            self._world.all_gather_object(None)
        loop.clock.start()
        if self._profiler is None:
            yield
            return
        clock = loop.clock
        loop.clock = MarkingClock(clock)
        mark(OTHER)
        try:
            yield
            self._drain()  # the host runs ahead: what it asked for is of this step
        finally:
            loop.clock = clock
            mark(traces.END)

    def step_done(self, step: int) -> None:
        """After `step`, outside of any. All ranks together."""
        if step in self._asked and step != self._asked[-1]:
            return
        trace = self._stop(step)
        if step in self.sampled:
            read = _steps_of(trace, step)
            self._sampler.add(describe(step, read[-1]) if read else None)  # before it may be one given up
            return
        if trace is not None:
            read = _steps_of(trace, step)
            self._seen = list(zip(range(step - len(read) + 1, step + 1), read, strict=True))
            packed = gzip.compress(json.dumps(trace).encode(), compresslevel=5)
            with drop_if_disk_full():
                write_bytes(self._attempt.trace(self._world.rank), packed, durable=False)
        self._world.all_gather_object(None)  # else the next step would show the others waiting for this

    def summary(self) -> CommSummary | None:
        """Communication of a step, from the samples; None where there are none."""
        return self._sampler.summary()

    def finish(self, own: Mapping[int, PhaseSeconds]) -> None:
        """Write what the profiler says of the traced steps beside what the step clock (`own`) says."""
        if self._seen:
            record = compare(self._world.rank, self._seen, own)
            write_json(self._attempt.profile(self._world.rank), record.model_dump(mode="json"))

    def _drain(self) -> None:
        """Wait for the device. The step is left out of all figures, so it may."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

    def _stop(self, step: int) -> dict[str, Any] | None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        try:
            profiler.stop()
            with tempfile.TemporaryDirectory(prefix="disttrain-") as folder:
                path = Path(folder) / "trace.json"
                profiler.export_chrome_trace(str(path))
                return dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, RuntimeError) as error:
            _lost(step, error)
            return None


class MarkingClock:
    """A step clock that also leaves a mark in the profiler's trace wherever a class begins."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    @property
    def phase(self) -> int:
        return self._clock.phase

    def start(self) -> None:
        self._clock.start()

    def switch(self, phase: int) -> None:
        self._clock.switch(phase)
        mark(phase)

    def end_step(self) -> None:
        self._clock.end_step()

    def finished(self, await_steps: int = 0) -> list[tuple[float, PhaseSeconds]]:
        return self._clock.finished(await_steps)


def mark(phase: int) -> None:
    """Leave a mark in the trace that is being recorded."""
    with record_function(f"{traces.MARK}{phase}"):
        pass


def _profiler(device: torch.device) -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would announce each start and stop on stderr
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    return profile(activities=kinds, record_shapes=True)


def _steps_of(trace: dict[str, Any] | None, step: int) -> list[StepTrace]:
    """The steps in a trace that ends with `step`. None, with a line in the log, where it cannot be read:
    a look at a step must not end the run."""
    try:
        return traces.read(trace) if trace is not None else []
    except (ValueError, KeyError, TypeError) as error:
        _lost(step, error)
        return []


def _lost(step: int, error: Exception) -> None:
    log.error("profiled step lost", step=step, kind=type(error).__name__, error=str(error))
