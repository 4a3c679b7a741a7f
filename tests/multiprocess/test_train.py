"""The trainer on real ranks: the same curve at every world size, records from each rank, honest parts."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.engine.train import train
from disttrain.records.attempt import Progress
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.steps import PHASES, Step
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.profiled.step_trace import END, MARK
from tests.support.ranks import RankFailed
from tests.support.tolerance import approx_losses, tolerance

pytestmark = pytest.mark.multiprocess

GPT = {
    "model": {"kind": "gpt", "layers": 2, "width": 32, "heads": 2},
    "data": {"kind": "text", "seq_len": 32},
    "train": {"steps": 50, "global_batch_size": 8, "eval_samples": 64},
    "optim": {"lr": 1e-3, "warmup_steps": 5, "grad_clip": 1.0},
}
SMALL = {
    "model": {"kind": "tests.support.small_models:Net"},
    "data": {"kind": "tests.support.small_models:source"},
    "train": {"steps": 12, "local_batch_size": 4, "log_every": 5},
    "telemetry": {"warmup_steps": 2},
}


def make_config(base: dict, world: int, **sections: dict) -> Config:
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}
    merged["resources"] = {"nodes": world, "gpus_per_node": 1, "device": "cpu"}
    return Config.model_validate(merged)


def alone() -> World:
    return World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)


def train_on(world: World, config: Config, folder: Path) -> Metrics:
    return train(config, RunOutput.of_job(folder, 0), world)


def curve(metrics: Metrics) -> list[float]:
    return [point.loss for point in metrics.loss_history]


def test_the_loss_curve_is_the_same_on_one_two_and_four_ranks(two_ranks, four_ranks, tmp_path):
    one = train_on(alone(), make_config(GPT, 1), tmp_path / "1")
    two = two_ranks.call(train_on, make_config(GPT, 2), tmp_path / "2")[0]
    four = four_ranks.call(train_on, make_config(GPT, 4), tmp_path / "4")[0]
    assert len(curve(one)) == 50
    assert curve(two) == approx_losses(curve(one))
    assert curve(four) == approx_losses(curve(one))
    assert curve(one)[-1] < curve(one)[0] - 1  # and it learns
    bits = [m.eval_history[-1].metrics["bits_per_byte"] for m in (one, two, four)]
    assert bits == pytest.approx([bits[0]] * 3, rel=tolerance(one.steps))


def test_accumulation_gives_the_curve_of_one_big_batch(two_ranks, tmp_path):
    whole = make_config(GPT, 2, train={"steps": 10})
    parts = make_config(GPT, 2, train={"steps": 10, "local_batch_size": 1})
    a = two_ranks.call(train_on, whole, tmp_path / "whole")[0]
    b = two_ranks.call(train_on, parts, tmp_path / "parts")[0]
    assert (a.accumulation, b.accumulation) == (1, 4)
    assert curve(b) == approx_losses(curve(a))


def test_accumulation_talks_once_a_step(two_ranks, tmp_path):
    counts = two_ranks.call(count_collectives, make_config(SMALL, 2, train={"steps": 1}), tmp_path / "1")
    accumulating = make_config(SMALL, 2, train={"steps": 1, "global_batch_size": 32})
    more = two_ranks.call(count_collectives, accumulating, tmp_path / "4")
    assert counts == more


def count_collectives(world: World, config: Config, folder: Path) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train_on(world, config, folder)
    return sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce")


def test_every_rank_leaves_valid_step_records_whose_parts_sum_to_the_step(two_ranks, tmp_path):
    two_ranks.call(train_on, make_config(SMALL, 2), tmp_path)
    output = RunOutput.of_job(tmp_path, 0)
    for rank in range(2):
        steps = [Step.model_validate(line) for line in read_jsonl(output.attempt.steps(rank))]
        assert [s.step for s in steps] == list(range(1, 13))
        for s in steps:
            assert sum(getattr(s, name) for name in PHASES) == pytest.approx(s.step_s, abs=1e-6)
            assert s.compute_s > 0
            assert s.comm_wait_s + s.comm_transfer_s == pytest.approx(s.comm_exposed_s, abs=1e-6)
            assert min(s.comm_wait_s, s.comm_transfer_s) >= 0
    Metrics.model_validate(read_json(output.run.metrics))
    progress = Progress.model_validate(read_json(output.run.progress))
    assert (progress.step, progress.steps) == (12, 12)


def test_metrics_count_only_measured_steps_and_say_so(two_ranks, tmp_path):
    metrics = two_ranks.call(train_on, make_config(SMALL, 2), tmp_path)[0]
    assert metrics.status == "completed"
    assert (metrics.warmup_steps, metrics.measured_steps, metrics.steps) == (2, 10, 12)
    assert metrics.samples_per_s == pytest.approx(10 * 8 / metrics.measured_s)
    assert sum(metrics.composition.values()) == pytest.approx(metrics.measured_s / 10)
    assert metrics.comm_method == "ddp_backward_tail"
    assert metrics.eval_history[-1].samples == 13  # odd on two ranks: each counted once


def test_a_slow_rank_shows_in_its_own_compute_and_in_its_peers_communication(two_ranks, tmp_path):
    config = make_config(SMALL, 2, model={"slow_rank": 1, "slow_s": 0.05}, train={"log_every": 12})
    two_ranks.call(train_on, config, tmp_path)
    attempt = RunOutput.of_job(tmp_path, 0).attempt
    quick, slow = (list(read_jsonl(attempt.steps(rank))) for rank in range(2))
    for theirs, mine in list(zip(quick, slow, strict=True))[2:]:
        assert mine["compute_s"] >= 0.05  # a sleep is never shorter
        assert theirs["comm_wait_s"] > 0.5 * 0.05
        assert theirs["compute_s"] < theirs["comm_wait_s"]
        assert mine["comm_wait_s"] == 0, "nobody came later"
        assert mine["comm_transfer_s"] == theirs["comm_transfer_s"]


def test_validation_stands_outside_the_steps(tmp_path):
    config = make_config(SMALL, 1, train={"eval_every": 1})
    metrics = train_on(alone(), config, tmp_path)
    steps = list(read_jsonl(RunOutput.of_job(tmp_path, 0).attempt.steps(0)))
    gaps = [b["start_s"] - a["start_s"] - a["step_s"] for a, b in itertools.pairwise(steps)]
    evaluated = [point.elapsed_s for point in metrics.eval_history]
    assert len(evaluated) == 12
    for gap, elapsed in zip(gaps, evaluated, strict=False):
        assert gap >= elapsed - 1e-6
    assert [step["gap_s"] for step in steps] == pytest.approx([steps[0]["start_s"], *gaps], abs=1e-6)
    assert metrics.gap_s == pytest.approx(sum(step["gap_s"] for step in steps), abs=1e-5)


def test_a_failing_rank_leaves_what_was_measured(tmp_path):
    config = make_config(SMALL, 1, model={"kind": "tests.support.small_models:Failing"})
    with pytest.raises(RuntimeError, match="boom"):
        train_on(alone(), config, tmp_path)
    metrics = Metrics.model_validate(read_json(RunOutput.of_job(tmp_path, 0).run.metrics))
    assert (metrics.status, metrics.steps) == ("failed", 2)


def test_epochs_round_up_to_whole_steps(tmp_path):
    config = make_config(SMALL, 1, train={"steps": None, "epochs": 1.5, "local_batch_size": 10})
    assert train_on(alone(), config, tmp_path).steps == 10  # 96 samples in tens


def test_ranks_with_different_data_refuse_before_the_first_step(two_ranks, tmp_path):
    config = make_config(SMALL, 2, data={"rank_specific": True})
    with pytest.raises(RankFailed, match=r"data differs between ranks: rank 0 has \('argmax-0'"):
        two_ranks.call(train_on, config, tmp_path)
    assert not (tmp_path / "metrics.json").exists()


def test_sampled_steps_tell_what_each_bucket_did_and_are_left_out(two_ranks, tmp_path):
    model = {"slow_rank": 1, "slow_s": 0.02}
    config = make_config(SMALL, 2, model=model, train={"steps": 62}, telemetry={"profiled_steps": 3})
    metrics = two_ranks.call(train_on, config, tmp_path)[0]
    assert (metrics.sampled_steps, metrics.warmup_steps, metrics.measured_steps) == (3, 2, 57)
    attempt = RunOutput.of_job(tmp_path, 0).attempt
    by_rank = [[CommSample.model_validate(line) for line in read_jsonl(attempt.comm(r))] for r in range(2)]
    for mine, theirs in zip(*by_rank, strict=True):
        assert [each.bytes for each in mine.collectives] == [each.bytes for each in theirs.collectives]
        assert mine.hidden_s + mine.exposed_s == pytest.approx(mine.total_s)
        assert (mine.step, mine.step) in metrics.left_out
    parameters = 4 * metrics.parameters
    assert metrics.comm.bytes == parameters, "every gradient travels once, as float32"
    assert sum(each.bytes for each in metrics.comm.collectives) == parameters
    assert metrics.communication_time_per_step == metrics.comm.total_s > 0
    assert len(metrics.communication_computation_history) == 57
    assert metrics.communication_overhead_percent > 5, "the quick rank waits for the slow one"
    steps = [Step.model_validate(line).step for line in read_jsonl(attempt.steps(0))]
    assert steps == list(range(1, 63)), "sampled steps are recorded all the same"


def test_a_trace_on_request_is_written_and_left_out(two_ranks, tmp_path):
    asked = {"steps": [20, 22], "ranks": [1]}
    config = make_config(
        SMALL,
        2,
        model={"slow_rank": 1, "slow_s": 0.03},
        train={"steps": 42, "log_every": 1},
        telemetry={"profiled_steps": 2},
        profile=asked,
    )
    metrics = two_ranks.call(train_on, config, tmp_path)[0]
    assert (metrics.sampled_steps, metrics.measured_steps) == (5, 35)
    attempt = RunOutput.of_job(tmp_path, 0).attempt
    assert not attempt.trace(0).exists()
    trace = json.loads(gzip.decompress(attempt.trace(1).read_bytes()))
    assert any(event["name"] == "gloo:all_reduce" for event in trace["traceEvents"])
    assert [event["name"] for event in trace["traceEvents"]].count(f"{MARK}{END}") == 3


def test_a_sampled_step_computes_what_any_step_does(two_ranks, tmp_path):
    plain = two_ranks.call(
        train_on, make_config(SMALL, 2, train={"steps": 42}, telemetry={"profiled_steps": 0}), tmp_path / "0"
    )[0]
    config = make_config(SMALL, 2, train={"steps": 42}, telemetry={"profiled_steps": 2})
    sampled = two_ranks.call(train_on, config, tmp_path / "2")[0]
    assert (plain.sampled_steps, sampled.sampled_steps) == (0, 2)
    assert curve(sampled) == curve(plain)
