"""Profile selected steps under PyTorch's profiler: the collectives of each, and a trace on request.

A few steps, evenly spaced over the run, are profiled for their collectives: a hook on every bucket would add
hundreds of microseconds to each step instead. Profiled steps are recorded like any other and left out of all
figures, on all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

import numpy as np
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from disttrain.config.config_tree import Config
from disttrain.records.base import Record
from disttrain.records.communication import CollectiveSummary, CommSample, CommSummary, SampledCollective
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.json_lines import JsonLinesWriter
from disttrain.runtime.process_group import World
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.profiled.step_trace import END, MARK, comm_sample, read_trace
from disttrain.telemetry.step_clock import OTHER, StepClock

METHOD = "profiler_samples"
LARGEST_SHARE = 20
"""At most one step in this many is profiled."""


class ProfiledSteps:
    """Selects the steps to profile and profiles them."""

    def __init__(self, config: Config, attempt: Attempt, world: World, facts: RunFacts) -> None:
        self._world, self._attempt = world, attempt
        self._groups = facts.communication.groups
        first, last = config.profile.steps or (1, 0)
        self._traced = range(first, last + 1)
        self._writes_trace = world.rank in config.profile.ranks
        count = config.telemetry.profiled_steps if facts.communication.profiles_collectives else 0
        spread = steps_to_profile(count, config.telemetry.warmup_steps, facts.metrics["steps_total"])
        self.for_collectives = spread - set(self._traced)
        """Steps profiled for `comm-RRRRR.jsonl`."""
        self.steps = self.for_collectives | set(self._traced)
        """All steps that run within `take`."""
        self._profiler: profile | None = None
        self._samples: list[list[CommSample]] = []
        """On rank 0: the records of all ranks of each step whose collectives are equal on all of them."""

    @contextmanager
    def take(self, step: int, clock: StepClock) -> Iterator[None]:
        """Within, the loop takes `step` under the profiler, with the phases of `clock` as marks. Collective:
        all ranks call it.

        The step begins when all ranks are ready; later steps of one trace begin when this rank is ready. Time
        since the previous step belongs to no step."""
        if self._profiler is None and (step in self.for_collectives or self._writes_trace):
            self._profiler = _profiler(self._world.device)
            self._profiler.start()
            self._drain()
        if step in self.for_collectives or step in self._traced[:1]:
            # the profiler starts later on some ranks; without this, the others would wait within the step
            self._world.all_gather_object(None)
        clock.start()
        if self._profiler is None:
            yield
            return
        switch = clock.switch

        def switch_and_mark(phase: int) -> None:
            switch(phase)
            mark(phase)

        clock.switch = switch_and_mark  # type: ignore[method-assign]
        mark(OTHER)
        try:
            yield
            self._drain()  # queued work belongs to this step
        finally:
            clock.switch = switch  # type: ignore[method-assign]
            mark(END)

    def step_done(self, step: int) -> None:
        """Call after `step`, outside of steps. Collective: all ranks call it."""
        if step in self._traced[:-1]:
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
        try:
            profiler.stop()
            if step not in self.for_collectives:
                trace = self._attempt.trace(self._world.rank)
                unfinished = trace.with_name(f".{trace.name}")  # the profiler compresses by the suffix
                profiler.export_chrome_trace(str(unfinished))
                unfinished.rename(trace)
                return None
            sizes = {name: group.size() for name, group in self._groups.items()}
            sample = comm_sample(step, read_trace(profiler), sizes)
            file = JsonLinesWriter(self._attempt.comm(self._world.rank))
            file.add(sample)
            file.close()
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            log.error("profiled step lost", step=step, kind=type(error).__name__, error=str(error))
            return None
        return sample

    def _drain(self) -> None:
        """Wait for the device: permitted, since no figure covers the step."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)


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


def steps_to_profile(count: int, warmup: int, steps: int) -> frozenset[int]:
    """`count` evenly spaced steps after the warm-up, but at most one in `LARGEST_SHARE`."""
    measured = steps - warmup
    count = min(count, measured // LARGEST_SHARE)
    return frozenset(warmup + 1 + measured * (2 * i + 1) // (2 * count) for i in range(count))


# The summary over steps and ranks


def comm_summary(samples: Sequence[Sequence[CommSample]], ranks: int) -> CommSummary | None:
    """Means over the steps in `samples` whose collectives are those of the newest one; a step holds the
    records of all ranks. None without collectives."""
    steps = [step for step in samples if step[0].collectives]
    steps = [step for step in steps if layout(step[0]) == layout(steps[-1][0])]
    if not steps:
        return None
    collectives = [
        _collective([[rank.collectives[index] for rank in step] for step in steps], ranks)
        for index in range(len(steps[0][0].collectives))
    ]
    is_known = all(each.bytes is not None for each in collectives)
    bus_bytes = sum(bus_factor(each.kind, each.ranks or ranks) * (each.bytes or 0) for each in collectives)
    slowest = [min(rank.total_s for rank in step) for step in steps]
    return CommSummary(
        method=METHOD,
        sampled_steps=len(steps),
        count=len(collectives),
        bytes=sum(each.bytes or 0 for each in collectives) if is_known else None,
        **{name: _mean(steps, name) for name in ("total_s", "hidden_s", "exposed_s", "compute_s")},
        bus_bytes_per_s=fmean(bus_bytes / total_s for total_s in slowest) if is_known else None,
        collectives=collectives,
    )


def layout(sample: CommSample) -> list[tuple[str, int, int | None]]:
    """Kind, bucket and bytes of each collective in order; equal on all ranks."""
    return [(each.kind, each.bucket, each.bytes) for each in sample.collectives]


def _collective(calls: Sequence[Sequence[SampledCollective]], ranks: int) -> CollectiveSummary:
    """Means of one collective over steps and ranks. An early rank waits inside the collective, so the
    transfer time is the minimum over the ranks of its process group."""
    first = calls[0][0]
    size = first.ranks or ranks
    seconds = np.array([[rank.duration_s for rank in step] for step in calls])
    if first.dimension == "replicate":  # ranks at equal places of the shard groups (`parallel.base.Mesh`)
        shortest = seconds.reshape(len(calls), size, -1).min(axis=1)
    else:  # consecutive ranks
        group = size if first.dimension == "shard" else ranks
        shortest = seconds.reshape(len(calls), -1, group).min(axis=2)
    transfer_s = float(shortest.mean())
    rate = first.bytes / transfer_s if first.bytes and transfer_s else None
    return CollectiveSummary(
        **first.model_dump(include={"kind", "bucket", "bytes", "ranks", "dimension"}),
        total_s=_mean(calls, "duration_s"),
        hidden_s=_mean(calls, "hidden_s"),
        exposed_s=_mean(calls, "exposed_s"),
        transfer_s=transfer_s,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=rate and rate * bus_factor(first.kind, size),
    )


def _mean(steps: Sequence[Sequence[Record]], name: str) -> float:
    return fmean(getattr(rank, name) for step in steps for rank in step)


def bus_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth as defined in PERFORMANCE.md of nccl-tests. Bus bandwidth is
    comparable with the rate of a link at any number of ranks."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0
