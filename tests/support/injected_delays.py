"""Delays of known size that are injected into a run, and the seconds that its step records must show.

Ranks sleep where real ones compute, so two processors are enough for three ranks. The tests assert rank,
phase and order of magnitude; `benchmarks/truth.py` measures how accurate the seconds are.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy import stats
from torch import nn

from disttrain.checkpoint import storage
from disttrain.config.config_tree import Config
from disttrain.engine.train import train
from disttrain.models.emulated import Emulated
from disttrain.records.json_files import read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import live_progress

WARM_UP, MEASURED = 3, 6
"""Steps; of the measured ones the medians are taken."""
STEP: dict[str, dict[str, Any]] = {
    "model": {"kind": "emulated", "layers": 4, "layer_mb": 0.03125, "forward_s": 0.04, "backward_s": 0.08,
              "optimizer_s": 0.01},
    "data": {"kind": "synthetic", "shape": [8], "classes": 2, "samples": 2048, "valid_samples": 0},
    "train": {"steps": WARM_UP + MEASURED, "local_batch_size": 4, "log_every": 10},
    "telemetry": {"warmup_steps": WARM_UP, "sinks": [], "profiled_steps": 0},
    "parallel": {"ddp": {"bucket_mb": 0.03125}},
}  # fmt: skip
LATE_RANK, LATE_S = 1, 0.2
JITTER_S, SEED = 0.02, 5
SAVE_EVERY, SLOW_WRITE_S = 3, 0.4

Phases = dict[str, float]
"""Seconds of a step by phase."""
Sections = dict[str, dict[str, Any]]
"""Config sections laid over `STEP`."""
CONFIGURED: Phases = dict.fromkeys(PHASES, 0.0) | {
    "compute_s": STEP["model"]["forward_s"] + STEP["model"]["backward_s"],
    "optimizer_s": STEP["model"]["optimizer_s"],
}
"""A step of `STEP` without delays on an ideal machine, where communication and loading take no time."""


@dataclass(frozen=True)
class Delay:
    """`LATE_RANK` is late by `LATE_S` in every step."""

    phase: str
    """The phase of the late rank that contains the delay."""
    sections: Sections


DELAYS = {
    "slow rank": Delay("compute_s", {"model": {"slow_ranks": [LATE_RANK], "slow_s": LATE_S}}),
    "slow loader": Delay("input_s", {"data": {"delay_ranks": [LATE_RANK], "delay_s": LATE_S}}),
    "slow optimizer": Delay(
        "optimizer_s", {"model": {"transforms": ["tests.support.injected_delays:with_slow_optimizer"]}}
    ),
}
JITTER: Sections = {"model": {"jitter_s": JITTER_S, "seed": SEED}}
SAVING: Sections = {"checkpoint": {"every_steps": SAVE_EVERY, "asynchronous": False}}
FSDP: Sections = {"parallel": {"strategy": "fsdp"}}
HSDP: Sections = {"parallel": {"strategy": "hsdp", "hsdp": {"shard_size": 2}}}
"""Pairs of ranks share a copy."""
PREFETCH: Sections = {"parallel": {"fsdp": {"forward_prefetch": 1, "backward_prefetch": 1}}}
BUFFERS: Sections = {
    "model": {"transforms": ["tests.support.injected_delays:with_buffer"]},
    "data": {"delay_ranks": [0], "delay_s": LATE_S},
}
"""Rank 0, which broadcasts a buffer before each forward pass, is late."""
SLOW_SAVING: Sections = {
    **SAVING,
    "data": {
        "kind": "tests.support.slow_store:build",
        "slow_ranks": [LATE_RANK],
        "slow_write_s": SLOW_WRITE_S,
    },
}


def config(ranks: int, **sections: dict[str, Any]) -> Config:
    """`STEP` with changed keys, on `ranks` nodes of one rank."""
    merged = {name: {**STEP.get(name, {}), **sections.get(name, {})} for name in {*STEP, *sections}}
    merged["resources"] = {"nodes": ranks, "gpus_per_node": 1, "device": "cpu"}
    return Config.model_validate(merged)


def with_buffer(model: nn.Module) -> nn.Module:
    """The model with a buffer, which rank 0 broadcasts before each forward pass under DDP."""
    model.register_buffer("running_mean", torch.zeros(8))
    return model


def with_slow_optimizer(model: Emulated) -> Emulated:
    """The model, whose optimizer takes `LATE_S` longer on `LATE_RANK`."""
    if rank_info().rank == LATE_RANK:
        seconds = (model.table.optimizer_s or 0.0) + LATE_S
        model.table = model.table.model_copy(update={"optimizer_s": seconds})
    return model


def train_rank(world: World, config: Config, folder: Path) -> Metrics:
    """Train on this rank, scheduled before all other processes of the machine."""
    write = storage.write
    try:
        with real_time_priority():
            return train(config, RunOutput.of_job(folder, 0), world)
    finally:
        storage.write = write  # `slow_store` replaces it, and the ranks of a test session live on


def train_on_slow_disk(world: World, config: Config, folder: Path, slow_rank: int) -> Metrics:
    """`train_rank` with all records written in each step; on `slow_rank`, each write and each rename takes
    `LATE_S` longer."""

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any, **options: Any) -> Any:
            time.sleep(LATE_S)
            return call(*arguments, **options)

        return late

    with ExitStack() as stack:
        stack.enter_context(patch.object(live_progress, "PROGRESS_EVERY_S", 0.0))
        stack.enter_context(patch.object(live_progress, "SUMMARY_SHARE", 1e9))
        if world.rank == slow_rank:
            stack.enter_context(patch.multiple(os, write=slow(os.write), replace=slow(os.replace)))
        return train_rank(world, config, folder)


@contextmanager
def real_time_priority() -> Iterator[None]:
    """Schedule this process before all others, whose load then delays no step. No effect unless root."""
    with suppress(PermissionError):
        _schedule(os.SCHED_RR, 1)
    try:
        yield
    finally:
        _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def measured_steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The step records of a rank without its warm-up."""
    return [line for line in read_jsonl(RunDir(folder).attempt(0).steps(rank)) if line["step"] > WARM_UP]


def medians(folder: Path, ranks: int) -> list[Phases]:
    """Median seconds of each phase over the measured steps, by rank."""
    return [medians_of(measured_steps(folder, rank)) for rank in range(ranks)]


def medians_of(steps: list[dict[str, Any]]) -> Phases:
    return {name: statistics.median(step[name] for step in steps) for name in PHASES}


def medians_after_saving(folder: Path, ranks: int) -> list[Phases]:
    """As `medians`, over the steps that begin with saving the state after the step before."""
    every = [measured_steps(folder, rank) for rank in range(ranks)]
    return [medians_of([line for line in each if line["step"] % SAVE_EVERY == 1]) for each in every]


def other_share(folder: Path, rank: int) -> float:
    """Share of a rank's time that is in no named phase; of sums, so that rare events count."""
    every = measured_steps(folder, rank)
    return sum(line["other_s"] for line in every) / sum(line["step_s"] for line in every)


def one_late(ranks: int, seconds: float, phase: str, late_rank: int = LATE_RANK) -> list[Phases]:
    """The additional seconds of each rank: the late rank's in `phase`, its peers' as waiting."""
    return [{phase: seconds} if rank == late_rank else {"comm_wait_s": seconds} for rank in range(ranks)]


def jitter_of(steps: list[dict[str, Any]], rank: int) -> list[float]:
    """The seconds that `JITTER` adds to the compute phase of each of these steps."""
    return [JITTER_S * np.random.default_rng([SEED, rank, line["step"]]).standard_normal() for line in steps]


def slope(measured: list[float], injected: list[float]) -> float:
    """Theil-Sen estimate of measured over injected seconds: delays of single steps do not count."""
    return float(stats.theilslopes(measured, injected).slope)


def assert_about(found_s: float, injected_s: float, what: str) -> None:
    """The order of magnitude: more than half and less than double."""
    assert 0.5 * injected_s < found_s < 2 * injected_s, f"{what}: {found_s:.4f} s of {injected_s:.4f} s"


def assert_added(found: list[Phases], base: list[Phases], expected: list[Phases], delay_s: float) -> None:
    """Each rank has the expected delays in their phases and less than half of `delay_s` more in any other."""
    for rank, phases in enumerate(found):
        for name in PHASES:
            added_s = phases[name] - base[rank][name]
            if name in expected[rank]:
                assert_about(added_s, expected[rank][name], f"{name} of rank {rank}")
            else:
                assert abs(added_s) < 0.5 * delay_s, f"{name} of rank {rank}: {added_s:+.4f} s"
