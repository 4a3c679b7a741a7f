"""Passes without communication beside the steps of a run: what they tell, and that they leave no trace."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from disttrain.config.sections import Config
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import Output
from disttrain.runtime.stop_signals import Signals
from disttrain.telemetry.collective_stats import LARGEST_SHARE
from disttrain.train import prepare
from tests.multiprocess.test_known_truth import RANKS, run
from tests.support.stopping import Seen, alone, config, train_until
from tests.support.truth import LATE_RANK, LATE_S, MEASURES, SEED, SPREAD_S, WARM_UP

pytestmark = pytest.mark.multiprocess

STEPS = 44
MICRO_BATCHES = 2


def deep(calibrations: int) -> Config:
    """Dropout, batch norms, several buckets and micro-batches; validated after every step, with the buffers
    that each rank has then."""
    train = {"steps": STEPS, "local_batch_size": 2, "global_batch_size": 2 * MICRO_BATCHES * RANKS}
    telemetry = {"calibrations": calibrations, "samples": 0}
    return config(ranks=RANKS, train={**train, "eval_every": 1}, telemetry={"warmup_steps": 2, **telemetry})


def trained(seen: list[Seen]) -> list[object]:
    validations = [(point.step, point.loss, point.metrics) for point in seen[0].metrics.eval_history]
    return [*[rank.parameters for rank in seen], seen[0].metrics.loss_history, validations]


@pytest.mark.slow
def test_a_run_trains_to_the_same_bits_with_calibrations_and_without(three_ranks, tmp_path):
    plain = three_ranks.call(train_until, deep(0), tmp_path / "plain", 0, None)
    whole = three_ranks.call(train_until, deep(2), tmp_path / "whole", 0, None)
    assert plain[0].buckets >= 3
    assert [rank.inputs for rank in whole] == [rank.inputs for rank in plain]
    assert trained(whole) == trained(plain)
    assert (plain[0].metrics.calibration_passes, plain[0].metrics.comm_check) == (0, None)
    check = whole[0].metrics.comm_check
    assert whole[0].metrics.calibration_passes == 2 * MICRO_BATCHES
    assert whole[0].metrics.measured_steps == plain[0].metrics.measured_steps == STEPS - 2
    # and goes on from either side of one
    first, last = (each.step for each in check.steps)
    parts = [
        three_ranks.call(train_until, deep(2), tmp_path / "parts", attempt, stop)
        for attempt, stop in enumerate((first, last - 1, None))
    ]
    assert trained(parts[-1]) == trained(plain)
    assert [part[0].metrics.calibration_passes for part in parts] == [MICRO_BATCHES, 0, MICRO_BATCHES]


def test_a_pass_beside_the_steps_communicates_nothing(two_ranks, tmp_path):
    assert two_ranks.call(collectives_aside, tmp_path) == [0, 0]


def collectives_aside(world: World, folder: Path) -> int:
    """Of a pass that follows one with communication, which a model with buffers begins by sending these."""
    session = prepare(config(ranks=2, nodes=2), Output.of_job(folder, 0), world, Signals())
    session.trainer.step(1, session.batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        session.trainer.aside(session.example(), lambda what: None)
    assert session.trainer.model.require_forward_param_sync
    session.telemetry.abort()
    return sum(event.count for event in profile.key_averages() if event.key.startswith("gloo:"))


def test_one_rank_has_nothing_to_check(tmp_path):
    made = config(train={"steps": STEPS}, telemetry={"calibrations": 2})
    metrics = train_until(alone(), made, tmp_path, 0, None).metrics
    assert (metrics.calibration_passes, metrics.comm_check) == (0, None)
    assert metrics.null_reasons["comm_check"] == "one rank has nobody to communicate with"


@MEASURES
@pytest.mark.slow
def test_three_instruments_find_the_communication_that_is_known(three_ranks, tmp_path):
    """Other ranks wait for the last one; who is late by how much is drawn anew for each step, and the same in
    the pass without communication."""
    count = 3
    late = {"slow_ranks": [LATE_RANK], "slow_s": LATE_S, "jitter_s": SPREAD_S, "seed": SEED}
    train = {"steps": WARM_UP + count * LARGEST_SHARE}
    telemetry = {"calibrations": count, "samples": 0}
    run(three_ranks, tmp_path, model=late, train=train, telemetry=telemetry)
    metrics = Metrics.model_validate(read_json(RunDir(tmp_path).metrics))
    check = metrics.comm_check
    assert (metrics.calibration_passes, len(check.steps)) == (count, count)
    assert metrics.measured_steps == count * LARGEST_SHARE, "the steps beside are steps like any other"
    apart: dict[str, list[float]] = {"clock_s": [], "ddp_logger_s": [], "no_communication_s": []}
    for step in check.steps:
        drawn = [
            SPREAD_S * np.random.default_rng([SEED, rank, step.step]).standard_normal()
            + LATE_S * (rank == LATE_RANK)
            for rank in range(RANKS)
        ]
        known_s = max(drawn) - statistics.fmean(drawn)
        for name, differences in apart.items():
            differences.append(getattr(step, name) - known_s)
    # medians: another process may delay a single step
    within_s = {"clock_s": 0.002, "ddp_logger_s": 0.002, "no_communication_s": 0.003}
    assert {name: statistics.median(each) for name, each in apart.items()} == {
        name: pytest.approx(0, abs=seconds) for name, seconds in within_s.items()
    }
    assert (
        statistics.median(
            abs(logged - clock) for logged, clock in zip(apart["ddp_logger_s"], apart["clock_s"], strict=True)
        )
        < 0.001
    )
