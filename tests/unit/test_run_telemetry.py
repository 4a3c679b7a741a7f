"""`Recorder` by a clock that the test moves: when files are written, and at which cost."""

import math
import os
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.records.dataset import DatasetRecord
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import LossPoint
from disttrain.records.run_directory import RunDir
from disttrain.records.shared_folder import AttemptWatch
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import live_progress, recorder
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.recorder import Recorder
from disttrain.telemetry.steps import StepResult

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)


class Clockwork:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    thread_time = monotonic


def metrics_fields() -> dict:
    data = DatasetRecord(name="d", version=None, sha256=None, train_samples=1, valid_samples=0)
    machine = {"nodes": 1, "ranks_per_node": 1, "world_size": 1, "device": "cpu", "backend": None}
    machine |= {"torch": "2", "nccl": None, "cpu_count": 2, "oversubscribed": False}
    work = {"strategy": "single", "strategy_reason": "one", "comm_method": None, "model": "mlp"}
    work |= {"parameters": 1, "dataset": data, "model_flops_per_sample": None, "flops_method": None}
    batch = {"local_batch_size": 4, "accumulation": 1, "global_batch_size": 4}
    return {"name": "r", "sweep": "s", "run_key": "k", "steps_total": 10**6, **machine, **work, **batch}


@pytest.fixture
def telemetry(tmp_path, monkeypatch):
    clockwork = Clockwork()
    monkeypatch.setattr(recorder, "time", clockwork)
    monkeypatch.setattr(live_progress, "time", clockwork)
    run = RunDir(tmp_path)
    config = Config.model_validate({"telemetry": {"sinks": [], "gpu_every_s": 0, "warmup_steps": 0}})
    made = Recorder(RunOutput(run, run.attempt(0)), ALONE, config, RunFacts(metrics_fields()))
    made.clock.instant = clockwork.monotonic
    made.start()
    return made, clockwork


def take_steps(telemetry, clockwork, first, count, step_s):
    for step in range(first, first + count):
        clockwork.now += step_s
        telemetry.step_done(StepResult(step, torch.tensor(1.0), 0.1))


@pytest.mark.parametrize("step_s", [0.002, 0.1, 2.0])
def test_files_are_fresh_however_short_the_steps(telemetry, step_s):
    made, clockwork = telemetry
    done = 0
    for _ in range(4):
        count = math.ceil(6 / step_s)  # the flush interval is 5 s
        take_steps(made, clockwork, done + 1, count, step_s)
        done += count
        made.writer.wait()
        written = sum(1 for _ in read_jsonl(made.attempt.steps(0)))
        assert written >= done - count
        assert read_json(made.run.metrics)["steps"] > done - count
        assert read_json(made.run.progress)["step"] > done - count


def test_a_long_run_rarely_writes_its_live_files(telemetry, monkeypatch):
    made, clockwork = telemetry
    made._progress.sinks._open = [sink := ListSink()]
    written = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: written.append(paths[1].name) or replace(*paths))
    take_steps(made, clockwork, 1, 2000, 1.0)
    made.writer.wait()
    written.clear()
    sink.sent.clear()
    for step in range(2001, 2301):
        take_steps(made, clockwork, step, 1, 1.0)
        made.writer.wait()
        assert step - read_json(made.run.progress)["step"] <= live_progress.LONGEST_INTERVAL_S
        interim = made.config.telemetry.flush_every_s
        assert step - read_json(made.run.metrics)["steps"] <= live_progress.LONGEST_INTERVAL_S + interim
    assert 5 <= written.count("progress.json") <= 6
    assert 4 <= written.count("metrics.json") <= 6
    assert [step for step, name, *_ in sink.sent if name == "lr"] == list(range(2001, 2301))


def test_records_do_not_wait_for_an_expensive_summary(telemetry, monkeypatch):
    made, clockwork = telemetry
    original = made._metrics

    def slow(*arguments):
        clockwork.now += 0.1
        return original(*arguments)

    monkeypatch.setattr(made, "_metrics", slow)
    for step in range(1, 151):
        take_steps(made, clockwork, step, 1, 1.0)
        made.writer.wait()
        written = sum(1 for _ in read_jsonl(made.attempt.steps(0)))
        assert step - written <= made.config.telemetry.flush_every_s
        summaries = read_json(made.run.metrics)["steps"] if made.run.metrics.exists() else 0
        assert step < 6 or step - summaries <= 0.1 / live_progress.SUMMARY_SHARE + 10


class ListSink:
    """A sink that keeps scalars in a list."""

    def __init__(self):
        self.sent = []

    def scalars(self, step, values):
        self.sent.append((step, *values))

    def close(self):
        pass


def test_sinks_get_each_scalar_once(telemetry):
    made, clockwork = telemetry
    made._progress.sinks._open = [sink := ListSink()]
    take_steps(made, clockwork, 1, 12, 0.3)
    made.writer.wait()
    rates = [(step, "lr", "memory_gib", "samples_per_s") for step in (4, 8, 12)]
    assert sink.sent == [*rates, (10, "loss/train")]


def test_no_step_waits_for_a_disk_that_does_not_answer(telemetry, monkeypatch):
    made, clockwork = telemetry
    answering = threading.Event()
    for owner, name in ((os, "write"), (os, "replace"), (AttemptWatch, "superseded")):
        blocked = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, call=blocked: answering.wait(60) and call(*args))
    take_steps(made, clockwork, 1, 200, 0.1)
    assert not made.run.progress.exists()
    assert made.attempt.steps(0).read_bytes() == b""
    answering.set()
    assert made.finish().steps == 200
    assert [line["step"] for line in read_jsonl(made.attempt.steps(0))] == list(range(1, 201))
    assert read_json(made.run.progress)["step"] == 200


def test_after_a_state_the_file_has_each_step_before_the_flush_is_due(telemetry):
    made, clockwork = telemetry
    take_steps(made, clockwork, 1, 3, made.config.telemetry.flush_every_s / 10)
    made.writer.wait()
    assert made.attempt.steps(0).read_bytes() == b""
    made.state_dict()
    made.writer.wait()
    assert [line["step"] for line in read_jsonl(made.attempt.steps(0))] == [1, 2, 3]


def test_a_state_waits_for_a_slow_disk(telemetry, monkeypatch):
    made, clockwork = telemetry
    write = os.write
    monkeypatch.setattr(os, "write", lambda *args: time.sleep(0.2) or write(*args))
    take_steps(made, clockwork, 1, 3, 0.1)
    made.state_dict()
    assert [line["step"] for line in read_jsonl(made.attempt.steps(0))] == [1, 2, 3]


def test_no_batch_of_records_is_large(telemetry):
    made, clockwork = telemetry
    for step in range(1, 301):
        take_steps(made, clockwork, step, 1, 0.0001)
        assert made.steps.unread <= made.config.train.log_every


@pytest.mark.parametrize(("step_s", "every"), [(2.0, 10), (0.1, 10), (0.03, 40), (0.001, 100), (0.0, 10)])
def test_reductions_are_some_steps_and_about_a_second_apart(telemetry, monkeypatch, step_s, every):
    made, clockwork = telemetry
    reduced = []
    monkeypatch.setattr(made.steps, "reduce", lambda wait=False: reduced.append(made.steps.step))
    made.set_pace(step_s)
    take_steps(made, clockwork, 1, 300, step_s)
    assert reduced == list(range(every, 301, every))


def test_a_summary_makes_no_more_points_than_it_shows(telemetry, monkeypatch):
    made, clockwork = telemetry
    take_steps(made, clockwork, 1, 3000, 0.001)
    metrics = made.finish()
    assert len(metrics.loss_history) == 1000
    assert metrics.loss_history[::999] == [LossPoint(step=step, loss=1.0) for step in (1, 3000)]


def test_a_run_whose_loss_was_not_finite_goes_on(telemetry):
    made, clockwork = telemetry
    made.origin = SimpleNamespace(manifest=SimpleNamespace(step=7), same_run=True)
    made.load_state_dict(made.state_dict() | {"history.loss": torch.tensor([7, math.nan]).double()})
    clockwork.now += 2 * live_progress.PROGRESS_EVERY_S
    made.step_done(StepResult(8, torch.tensor(1.0), 0.1))
    made.writer.wait()
    assert read_json(made.run.progress)["loss"] is None
    assert [(p.step, p.loss) for p in made.finish().loss_history] == [(7, None), (8, 1.0)]


def test_a_failing_run_keeps_its_numbers_and_never_hides_the_cause(telemetry, monkeypatch):
    made, clockwork = telemetry
    take_steps(made, clockwork, 1, 3, 0.1)
    made.abort()
    metrics = read_json(made.run.metrics)
    assert (metrics["status"], metrics["steps"]) == ("failed", 3)
    monkeypatch.setattr(made, "_metrics", lambda *_: 1 / 0)
    made.abort()  # raises nothing


def test_validation_does_not_lower_the_live_rate(telemetry):
    made, clockwork = telemetry
    take_steps(made, clockwork, 1, 10, 0.05)
    with made.outside_steps():
        clockwork.now += 60
    take_steps(made, clockwork, 11, 20, 0.05)
    made.writer.wait()
    assert read_json(made.run.progress)["samples_per_s"] == pytest.approx(4 / 0.05, rel=0.01)


def test_the_rate_of_a_finished_run_covers_all_measured_steps(telemetry, monkeypatch):
    made, clockwork = telemetry
    take_steps(made, clockwork, 1, 20, 0.1)
    take_steps(made, clockwork, 21, 40, 0.05)
    made.writer.wait()
    progress = read_json(made.run.progress)
    assert progress["samples_per_s"] == pytest.approx(4 / 0.05, rel=0.01)
    assert progress["mean_samples_per_s"] == pytest.approx(4 * 40 / 3.0, rel=0.02)
    assert made.finish().samples_per_s == pytest.approx(4 * 60 / 4.0)
    assert read_json(made.run.progress)["samples_per_s"] == pytest.approx(4 * 60 / 4.0)
