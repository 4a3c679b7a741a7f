"""Profile selected steps under PyTorch's profiler: the collectives of each, and a trace on request.

Profiled steps are recorded like any other and left out of all figures, on all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from disttrain.config.config_tree import Config
from disttrain.records.communication import CommSummary
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.process_group import World
from disttrain.telemetry.collective_stats import CollectiveStats, comm_sample, steps_to_profile
from disttrain.telemetry.null_reasons import ProfilingPlan
from disttrain.telemetry.step_clock import OTHER, ClockedStep, PhaseSeconds, StepClock
from disttrain.telemetry.trace_comparison import compare_with_clock
from disttrain.telemetry.trace_file import export_trace, write_trace
from disttrain.telemetry.trace_parsing import END, MARK, StepTrace, parse_trace


class HasClock(Protocol):
    """A training loop that switches a step clock."""

    clock: StepClock


class ProfiledSteps:
    """Selects the steps to profile and profiles them."""

    def __init__(
        self,
        config: Config,
        attempt: Attempt,
        world: World,
        *,
        times_collectives: bool,
        steps: int,
        group_sizes: Mapping[Dimension, int] | None = None,
    ) -> None:
        """`times_collectives`: whether `telemetry.profiled_steps` applies to this run of `steps` steps.
        `group_sizes`: ranks of this rank's group of each dimension of a mesh with two."""
        self._group_sizes = group_sizes or {}
        self._requested = config.telemetry.profiled_steps
        self._world = world
        self._attempt = attempt
        self._collective_stats = CollectiveStats(attempt.comm(world.rank), world)
        first, last = config.profile.steps or (1, 0)
        self._traced = range(first, last + 1)
        self._writes_trace = world.rank in config.profile.ranks
        spread = steps_to_profile(
            config.telemetry.profiled_steps if times_collectives else 0, config.telemetry.warmup_steps, steps
        )
        self.for_collectives = spread - set(self._traced)
        """Steps profiled for `comm-RRRRR.jsonl`."""
        self.steps = self.for_collectives | set(self._traced)
        """All steps that run within `take`."""
        self._profiler: profile | None = None
        self._traced_steps: list[tuple[int, StepTrace]] = []

    @contextmanager
    def take(self, step: int, loop: HasClock) -> Iterator[None]:
        """Within, `loop` takes `step` under the profiler. All ranks together.

        The step begins when all ranks are ready; later steps of one trace begin when this rank is ready. Time
        since the previous step belongs to no step."""
        if self._profiler is None and (step in self.for_collectives or self._writes_trace):
            self._profiler = _profiler(self._world.device)
            self._profiler.start()
            self._drain()
        if step in self.for_collectives or step in self._traced[:1]:
            # the profiler starts later on some ranks; without this, the others would wait within the step
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
            self._drain()  # queued work belongs to this step
        finally:
            loop.clock = clock
            mark(END)

    def step_done(self, step: int) -> None:
        """Call after `step`, outside of steps. All ranks together."""
        if step in self._traced and step != self._traced[-1]:
            return
        trace = self._stop(step)
        if step in self.for_collectives:
            read = self._steps_of(trace, step)
            self._collective_stats.add(
                comm_sample(step, read[-1]) if read else None
            )  # the last of the steps in the trace
            return
        if trace is not None:
            read = self._steps_of(trace, step)
            self._traced_steps = list(zip(range(step - len(read) + 1, step + 1), read, strict=True))
            write_trace(self._attempt.trace(self._world.rank), trace)
        self._world.all_gather_object(
            None
        )  # without this, the others would wait for this rank within the next step

    def summary(self) -> CommSummary | None:
        """Communication of a step, from the steps profiled for it; None where there are none."""
        return self._collective_stats.summary()

    def plan(self, first: int, last: int) -> ProfilingPlan:
        """How many steps were to be profiled for their collectives, and were between `first` and `last`."""
        return ProfilingPlan(
            requested=self._requested,
            planned=len(self.for_collectives),
            taken=sum(first < step <= last for step in self.for_collectives),
        )

    def finish(self, own: Mapping[int, PhaseSeconds]) -> None:
        """Compare the profiler's phases of the traced steps with the step clock's (`own`) in
        `profile-RRRRR.json`."""
        if self._traced_steps:
            record = compare_with_clock(self._world.rank, self._traced_steps, own)
            write_json(self._attempt.profile(self._world.rank), record.model_dump(mode="json"))

    def _steps_of(self, trace: dict[str, Any] | None, step: int) -> list[StepTrace]:
        """The steps in a trace that ends with `step`. A trace that cannot be read is logged and gives none,
        so that profiling never ends the run."""
        try:
            return parse_trace(trace, self._group_sizes) if trace is not None else []
        except (ValueError, KeyError, TypeError) as error:
            _lost(step, error)
            return []

    def _drain(self) -> None:
        """Wait for the device: permitted, since no figure covers the step."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

    def _stop(self, step: int) -> dict[str, Any] | None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        try:
            profiler.stop()
            return export_trace(profiler, for_collectives=step in self.for_collectives)
        except (OSError, ValueError, RuntimeError) as error:
            _lost(step, error)
            return None


class MarkingClock:
    """A step clock that also marks the beginning of each phase in the profiler's trace."""

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

    def finished(self, await_steps: int = 0) -> list[ClockedStep]:
        return self._clock.finished(await_steps)


def mark(phase: int) -> None:
    """Mark the beginning of `phase` in the trace."""
    with record_function(f"{MARK}{phase}"):
        pass


def _profiler(device: torch.device) -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences a line on stderr at each start and stop
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    # without a device, a thread beside the training thread may communicate the gradients
    threads = None if device.type == "cuda" else _ExperimentalConfig(profile_all_threads=True)
    return profile(activities=kinds, record_shapes=True, experimental_config=threads)


def _lost(step: int, error: Exception) -> None:
    log.error("profiled step lost", step=step, kind=type(error).__name__, error=str(error))
