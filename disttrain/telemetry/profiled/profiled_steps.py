"""Profile selected steps under PyTorch's profiler: the collectives of each, and a trace on request.

A few steps, evenly spaced over the run, are profiled for their collectives: a hook on every bucket would add
hundreds of microseconds to each step instead. Profiled steps are recorded like any other and left out of all
figures, on all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from disttrain.config.config_tree import Config
from disttrain.records.communication import CommSample, CommSummary
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.telemetry.profiled.collective_summary import comm_summary, layout, steps_to_profile
from disttrain.telemetry.profiled.step_trace import END, MARK, comm_sample, export_trace, write_trace
from disttrain.telemetry.step_clock import OTHER, StepClock


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
        self._group_sizes = group_sizes
        count = config.telemetry.profiled_steps if times_collectives else 0
        self._world = world
        self._attempt = attempt
        first, last = config.profile.steps or (1, 0)
        self._traced = range(first, last + 1)
        self._writes_trace = world.rank in config.profile.ranks
        spread = steps_to_profile(count, config.telemetry.warmup_steps, steps)
        self.for_collectives = spread - set(self._traced)
        """Steps profiled for `comm-RRRRR.jsonl`."""
        self.steps = self.for_collectives | set(self._traced)
        """All steps that run within `take`."""
        self._profiler: profile | None = None
        self._samples: list[list[CommSample]] = []
        """On rank 0: the records of all ranks of each step whose collectives are equal on all of them."""

    @contextmanager
    def take(self, step: int, loop: HasClock) -> Iterator[None]:
        """Within, `loop` takes `step` under the profiler. Collective: all ranks call it.

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
        loop.clock = cast(StepClock, MarkingClock(clock))
        mark(OTHER)
        try:
            yield
            self._drain()  # queued work belongs to this step
        finally:
            loop.clock = clock
            mark(END)

    def step_done(self, step: int) -> None:
        """Call after `step`, outside of steps. Collective: all ranks call it."""
        if step in self._traced and step != self._traced[-1]:
            return
        # also after a trace: without this, the others would wait for this rank within the next step
        ranks = [sample for sample in self._world.all_gather_object(self._read(step)) if sample is not None]
        same = len(ranks) == self._world.size and all(layout(each) == layout(ranks[0]) for each in ranks)
        if self._world.rank == 0 and same:
            self._samples.append(ranks)

    def summary(self) -> CommSummary | None:
        """Communication of a step, from the steps profiled for it; None where there are none."""
        return comm_summary(self._samples, self._world.size)

    def _read(self, step: int) -> CommSample | None:
        """End the profile. Write the trace that was requested, or else the step's record, and return that.

        A trace that cannot be exported or read is logged, so that profiling never ends the run."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        for_collectives = step in self.for_collectives
        try:
            profiler.stop()
            trace = export_trace(profiler, for_collectives=for_collectives)
            if not for_collectives:
                write_trace(self._attempt.trace(self._world.rank), trace)
                return None
            sample = comm_sample(step, trace, self._group_sizes)
            file = JsonLinesWriter(self._attempt.comm(self._world.rank))
            file.add(sample.model_dump(mode="json"))
            file.close()
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            log.error("profiled step lost", step=step, kind=type(error).__name__, error=str(error))
            return None
        return sample

    def _drain(self) -> None:
        """Wait for the device: permitted, since no figure covers the step."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)


class MarkingClock:
    """A step clock that also marks the beginning of each phase in the profiler's trace."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def switch(self, phase: int) -> None:
        self._clock.switch(phase)
        mark(phase)


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
