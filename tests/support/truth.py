"""What is made slow, and what its records have to say of it: in its class, on its rank, in its size, on its
peers as waiting, and nowhere else. Ranks wait where others compute, so two processors are enough for all."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from disttrain.checkpoint import storage
from disttrain.config.sections import Config
from disttrain.records.json_files import read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.train import train

MEASURES = pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"])
"""On tests whose figures another process of this machine can disturb: they measure again then, twice at most.
What an instrument gets wrong it gets wrong each time. Not on tests of what is exact: what fails there now and
then is a race."""

WARM_UP = 3
TOLERANCE_S, TOLERANCE = 0.002, 0.05
LARGEST_OTHER = 0.02

STEP: dict[str, dict[str, Any]] = {
    "model": {"kind": "emulated", "layers": 4, "layer_mb": 0.03125, "forward_s": 0.04, "backward_s": 0.08,
              "optimizer_s": 0.01},
    "data": {"kind": "synthetic", "shape": [8], "classes": 2, "samples": 2048, "valid_samples": 0},
    "train": {"steps": 23, "local_batch_size": 4, "log_every": 10},
    "telemetry": {"warmup_steps": WARM_UP, "sinks": [], "profiled_steps": 0},
    "parallel": {"bucket_mb": 0.03125},
}  # fmt: skip
LATE_RANK, LATE_S = 1, 0.05
SPREAD_S, SEED = 0.02, 5
SAVE_EVERY, SLOW_WRITE_S = 3, 0.4

Classes = dict[str, float]
"""Seconds of a step in each class."""
Sections = dict[str, dict[str, Any]]
"""What differs from `STEP`."""


@dataclass(frozen=True)
class Late:
    """One rank is late by `LATE_S`."""

    own: str
    """The class that it is in there."""
    sections: Sections


LATE = {
    "slow rank": Late("compute_s", {"model": {"slow_ranks": [LATE_RANK], "slow_s": LATE_S}}),
    "slow loader": Late("input_s", {"data": {"delay_ranks": [LATE_RANK], "delay_s": LATE_S}}),
    "slow optimizer": Late("optimizer_s", {"model": {"slow_ranks": [LATE_RANK], "slow_optimizer_s": LATE_S}}),
}
JITTER: Sections = {"model": {"jitter_s": SPREAD_S, "seed": SEED}}
SAVING: Sections = {"checkpoint": {"every_steps": SAVE_EVERY, "asynchronous": False}}
SLOW_SAVING: Sections = {
    **SAVING,
    "data": {
        "kind": "tests.support.slow_store:build",
        "slow_ranks": [LATE_RANK],
        "slow_write_s": SLOW_WRITE_S,
    },
}


def config(ranks: int, **sections: dict[str, Any]) -> Config:
    """A run of so many ranks, each on a node of its own."""
    merged = {name: {**STEP.get(name, {}), **sections.get(name, {})} for name in {*STEP, *sections}}
    merged["resources"] = {"nodes": ranks, "gpus_per_node": 1, "device": "cpu"}
    return Config.model_validate(merged)


def run_each(world: World, config: Config, folder: Path) -> Metrics:
    """Train on this rank, ahead of all else on the machine."""
    with pytest.MonkeyPatch.context() as patch, ahead():
        patch.setattr(storage, "write", storage.write)  # what a slow store puts there is gone afterwards
        return train(config, RunOutput.of_job(folder, 0), world)


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
    return {name: statistics.median(step[name] for step in steps) for name in PHASES}


def other_share(folder: Path, rank: int) -> float:
    """ArrayTask of a rank's time that no class accounts for: of sums, so that rare events count."""
    every = lines(folder, rank)
    return sum(line["other_s"] for line in every) / sum(line["step_s"] for line in every)


def is_about(seconds: float, within_s: float = TOLERANCE_S) -> Any:
    """Within 5 % or 2 ms."""
    return pytest.approx(seconds, rel=TOLERANCE, abs=within_s)


def assert_found(
    found: list[Classes],
    base: list[Classes],
    expected: list[Classes],
    within_s: Classes | None = None,
) -> None:
    """Each rank has more of each class by what is expected, by nothing where nothing is; `within_s` allows
    some classes more than the 2 ms."""
    for rank, classes in enumerate(found):
        more = {name: classes[name] - base[rank][name] for name in PHASES}
        assert more == {
            name: is_about(expected[rank].get(name, 0.0), (within_s or {}).get(name, TOLERANCE_S))
            for name in PHASES
        }, f"rank {rank}"


def assert_accounted_for(folder: Path, ranks: int) -> None:
    for rank in range(ranks):
        assert other_share(folder, rank) < LARGEST_OTHER, f"rank {rank}"


def waits_but(ranks: int, seconds: float, own: str) -> list[Classes]:
    """The late rank has it in a class of its own, and its peers wait for it."""
    return [{own: seconds} if rank == LATE_RANK else {"comm_wait_s": seconds} for rank in range(ranks)]


def assert_one_is_late(folder: Path, clean: list[Classes], late: Late) -> None:
    ranks = len(clean)
    assert_found(medians(folder, ranks), clean, waits_but(ranks, LATE_S, late.own))
    assert_accounted_for(folder, ranks)


def assert_jitter(folder: Path, clean: list[Classes]) -> None:
    """It has its spread, and each rank waits for the one that drew most."""
    ranks = len(clean)
    by_rank, found = [lines(folder, rank) for rank in range(ranks)], medians(folder, ranks)
    drawn = [
        [SPREAD_S * np.random.default_rng([SEED, rank, line["step"]]).standard_normal() for line in each]
        for rank, each in enumerate(by_rank)
    ]
    latest = [max(step) for step in zip(*drawn, strict=True)]
    for rank, each in enumerate(by_rank):
        computed = [line["compute_s"] for line in each]
        # the median of all slopes: single steps that another process delayed do not count
        assert stats.theilslopes(computed, drawn[rank]).slope == pytest.approx(1, rel=TOLERANCE)
        more_s = statistics.median(computed) - clean[rank]["compute_s"]
        assert more_s == is_about(statistics.median(drawn[rank]))
        apart = [
            line["comm_wait_s"] - (late - own)
            for line, late, own in zip(each, latest, drawn[rank], strict=True)
        ]
        assert statistics.median(apart) == is_about(0)
        for name in set(PHASES) - {"compute_s", "comm_wait_s"}:
            assert found[rank][name] == is_about(clean[rank][name]), name
    assert_accounted_for(folder, ranks)


def assert_saving_is_slow(slow: Path, quick: Path, ranks: int) -> None:
    """`SLOW_SAVING` beside `SAVING`: a blocking checkpoint that one rank is slow to write."""
    # what ranks agree on and write takes a while of its own, of which the processors make what they will:
    # some milliseconds, on one rank as saving, on the others as waiting for it, on all as transfer
    within_s = dict.fromkeys(("checkpoint_s", "comm_wait_s", "comm_transfer_s"), TOLERANCE * SLOW_WRITE_S)
    expected = waits_but(ranks, SLOW_WRITE_S, "checkpoint_s")
    assert_found(_saved(slow, ranks), _saved(quick, ranks), expected, within_s)
    assert_found(medians(slow, ranks), medians(quick, ranks), [{}] * ranks)
    assert_accounted_for(slow, ranks)


def _saved(folder: Path, ranks: int) -> list[Classes]:
    """Medians by rank over the steps that begin with saving what the step before left."""
    every = [lines(folder, rank) for rank in range(ranks)]
    return [medians_of([line for line in each if line["step"] % SAVE_EVERY == 1]) for each in every]
