"""What is known to be in a run, and what its records say of it."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from disttrain.checkpoint import storage
from disttrain.config import Config
from disttrain.output import Output
from disttrain.records import CLASSES, Metrics
from disttrain.rundir import RunDir, read_jsonl
from disttrain.train import train
from disttrain.world import World

WARM_UP = 3
TOLERANCE_S, TOLERANCE = 0.002, 0.05

Classes = dict[str, float]
"""Seconds of a step in each class."""


def run_each(world: World, configs: list[Config], folder: Path, slow_write_s: dict[int, float]) -> Metrics:
    """Train each rank by a config of its own. Writing a checkpoint takes so much longer on some ranks."""
    write, late_s = storage.write, slow_write_s.get(world.rank, 0.0)

    def slow(planned: storage.PlannedSave) -> list[Any]:
        time.sleep(late_s)
        return write(planned)

    with pytest.MonkeyPatch.context() as patch, ahead():
        if late_s:
            patch.setattr(storage, "write", slow)
        return train(configs[world.rank], Output.of_job(folder, 0), world)


@contextmanager
def ahead() -> Iterator[None]:
    """Within, this process comes before all else on the machine, whose load is then not measured.
    Where that is not allowed, nothing."""
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


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The records of a rank's measured steps."""
    return [line for line in read_jsonl(RunDir(folder).attempt(0).steps(rank)) if line["step"] > WARM_UP]


def medians(folder: Path, ranks: int) -> list[Classes]:
    """By rank."""
    return [medians_of(lines(folder, rank)) for rank in range(ranks)]


def medians_of(steps: list[dict[str, Any]]) -> Classes:
    return {name: statistics.median(step[name] for step in steps) for name in CLASSES}


def other_share(folder: Path, rank: int) -> float:
    """Share of a rank's time that no class accounts for: of sums, so that rare events count."""
    every = lines(folder, rank)
    return sum(line["other_s"] for line in every) / sum(line["step_s"] for line in every)


def is_about(seconds: float, within_s: float = TOLERANCE_S) -> Any:
    """Within 5 % or 2 ms."""
    return pytest.approx(seconds, rel=TOLERANCE, abs=within_s)
