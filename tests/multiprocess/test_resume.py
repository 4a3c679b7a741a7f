"""Exact resume: a run stopped anywhere and resumed is the run that was never stopped, to the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import Step
from tests.support.lineage import read_steps
from tests.support.ranks import Ranks
from tests.support.stopping import Seen, alone, config, samples_of, train_until

pytestmark = pytest.mark.multiprocess

STEPS = 12


def stop_points(seed: int) -> list[int]:
    """Two stops at random, of three starts."""
    return sorted(random.Random(seed).sample(range(1, STEPS), 2))


def in_attempts(ranks: Ranks, made, folder: Path, stops: list[int], prime: bool = True) -> list[list[Seen]]:
    """By attempt, what each rank saw."""
    return [
        ranks.call(train_until, made, folder, attempt, stop, prime)
        for attempt, stop in enumerate([*stops, None])
    ]


def records(folder: Path, rank: int) -> list[Step]:
    """The step records of one rank, over all attempts in order."""
    paths = [attempt.steps(rank) for attempt in RunDir(folder).attempts()]
    return [Step.model_validate(line) for path in paths for line in read_jsonl(path)]


def assert_same(whole: list[Seen], parts: list[list[Seen]], folder: Path) -> None:
    last = parts[-1]
    for rank, undisturbed in enumerate(whole):
        assert last[rank].parameters == undisturbed.parameters
        assert [batch for part in parts for batch in part[rank].inputs] == undisturbed.inputs
        pieces, one = records(folder / "parts", rank), records(folder / "whole", rank)
        assert [step.step for step in pieces] == list(range(1, STEPS + 1))
        assert [(step.loss, step.lr) for step in pieces] == [(step.loss, step.lr) for step in one]
    assert last[0].metrics.loss_history == whole[0].metrics.loss_history
    assert validations(last[0]) == validations(whole[0])


def validations(seen: Seen) -> list[tuple[object, ...]]:
    return [(point.step, point.loss, point.metrics) for point in seen.metrics.eval_history]


@pytest.mark.parametrize("seed", range(4))
def test_ddp_on_three_ranks(three_ranks: Ranks, tmp_path: Path, seed: int) -> None:
    made = config(ranks=3, train={"eval_every": 5})
    whole = three_ranks.call(train_until, made, tmp_path / "whole", 0, None)
    assert whole[0].buckets >= 3
    stops = stop_points(seed)
    parts = in_attempts(three_ranks, made, tmp_path / "parts", stops)
    assert [part[0].metrics.steps for part in parts] == [*stops, STEPS]
    assert [part[0].metrics.status for part in parts] == ["stopped", "stopped", "completed"]
    assert_same(whole, parts, tmp_path)


@pytest.mark.parametrize("option", ["static_graph", "find_unused_parameters"])
def test_ddp_options_on_three_ranks(three_ranks: Ranks, tmp_path: Path, option: str) -> None:
    """A static graph rebuilds its buckets after the second backward pass, unused parameters leave them."""
    made = config(ranks=3, parallel={"ddp": {"bucket_mb": 0.002, option: True}})
    whole = three_ranks.call(train_until, made, tmp_path / "whole", 0, None)
    assert_same(whole, in_attempts(three_ranks, made, tmp_path / "parts", [5]), tmp_path)


def accumulating(ranks: int):
    return config(ranks=ranks, train={"local_batch_size": 2, "global_batch_size": 18})


@pytest.mark.parametrize("make", [config, accumulating])
def test_ddp_without_priming_is_not_exact(three_ranks: Ranks, tmp_path: Path, make) -> None:
    """Fails if DDP no longer needs the priming pass."""
    made = make(ranks=3)
    whole = three_ranks.call(train_until, made, tmp_path / "whole", 0, None, False)
    parts = in_attempts(three_ranks, made, tmp_path / "parts", [5], prime=False)
    assert parts[-1][0].parameters != whole[0].parameters


@pytest.mark.parametrize("seed", range(5, 8))
def test_accumulation_on_three_ranks(three_ranks: Ranks, tmp_path: Path, seed: int) -> None:
    made = accumulating(ranks=3)
    whole = three_ranks.call(train_until, made, tmp_path / "whole", 0, None)
    assert whole[0].metrics.accumulation == 3
    assert whole[0].buckets >= 3
    assert_same(whole, in_attempts(three_ranks, made, tmp_path / "parts", stop_points(seed)), tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_dataset_draws_at_random_is_drawn_again(tmp_path: Path, workers: int) -> None:
    data = {"kind": "tests.support.small_models:drawing_source", "samples": 8, "workers": workers}
    made = config(data=data, model={"kind": "tests.support.small_models:Net"})
    whole = [train_until(alone(), made, tmp_path / "whole", 0, None)]
    drawn = samples_of(whole)
    assert len(set(drawn)) == len(drawn) == STEPS * 4, "every time a sample is taken it is another one"
    stops = stop_points(20)
    parts = [[train_until(alone(), made, tmp_path / "parts", k, s)] for k, s in enumerate([*stops, None])]
    assert_same(whole, parts, tmp_path)


@pytest.mark.parametrize("seed", range(10, 14))
def test_one_rank(tmp_path: Path, seed: int) -> None:
    made = config(train={"eval_every": 4, "local_batch_size": 3, "global_batch_size": 6})
    whole = [train_until(alone(), made, tmp_path / "whole", 0, None)]
    stops = stop_points(seed)
    parts = [[train_until(alone(), made, tmp_path / "parts", k, s)] for k, s in enumerate([*stops, None])]
    assert_same(whole, parts, tmp_path)


def test_every_sample_once_an_epoch(tmp_path: Path) -> None:
    """40 samples in fours: ten steps are an epoch, whatever was in between."""
    made = config(train={"steps": 10})
    parts = [[train_until(alone(), made, tmp_path, k, s)] for k, s in enumerate([3, 7, None])]
    samples = [sample for part in parts for sample in samples_of(part)]
    assert len(set(samples)) == len(samples) == 40


@pytest.mark.parametrize("world", [1, 3])
def test_steps_that_share_a_line_share_it_over_stops(tmp_path: Path, world: int, request) -> None:
    """Saved after every second step, most of the time in the middle of a line."""
    made = config(ranks=world, telemetry={"full_records": 2}, checkpoint={"every_steps": 2})
    ranks = request.getfixturevalue("three_ranks") if world > 1 else None
    parts = [
        ranks.call(train_until, made, tmp_path, attempt, stop)
        if ranks
        else [train_until(alone(), made, tmp_path, attempt, stop)]
        for attempt, stop in enumerate([5, 8, None])
    ]
    metrics = parts[-1][0].metrics
    for rank in range(world):
        found = read_steps(RunDir(tmp_path), rank)
        # two steps of warm-up after each start; the line of step 5 was open when the run was stopped
        assert {first: attempt for first, (attempt, _) in found.items()} == {
            1: 0,
            2: 0,
            3: 1,
            6: 1,
            8: 2,
            9: 2,
            11: 2,
        }
        lines = [line for _, line in found.values()]
        assert [line.get("last", line.get("step")) for line in lines] == [1, 2, 5, 7, 8, 10, 12]
        assert sum(line["samples"] for line in lines) == STEPS * 4
    measured_s = [
        sum(read_steps(RunDir(tmp_path), rank)[first][1]["step_s"] for first in (3, 8, 11))
        for rank in range(world)
    ]
    assert metrics.measured_s == pytest.approx(sum(measured_s) / world, abs=1e-5)
    assert metrics.measured_steps == 6


def test_a_run_that_goes_on_from_another_one_has_records_of_its_own_steps_alone(tmp_path: Path) -> None:
    made = config(telemetry={"full_records": 2})
    train_until(alone(), made, tmp_path / "one", 0, 5)
    [saved] = (tmp_path / "one" / "checkpoints").glob("step-*")
    other = config(telemetry={"full_records": 2}, checkpoint={"start_from": str(saved)})
    train_until(alone(), other, tmp_path / "other", 0, None)
    assert list(read_steps(RunDir(tmp_path / "other"), 0)) == [6, 8]


def test_a_run_that_was_finished_has_nothing_left_to_do(tmp_path: Path) -> None:
    made = config(checkpoint={"every_steps": 5})
    first = train_until(alone(), made, tmp_path, 0, None)
    again = train_until(alone(), made, tmp_path, 1, None)
    assert (again.metrics.status, again.metrics.steps, again.inputs) == ("completed", STEPS, [])
    assert again.parameters == first.parameters
    assert again.metrics.loss_history == first.metrics.loss_history
