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
from disttrain.records.run_directory import RunDir
from disttrain.records.shared_folder import AttemptWatch
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry import live_progress, recorder
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.recorder import Recorder
from disttrain.telemetry.steps import StepResult
from tests.support.stopping import alone

BATCH = 4
sent = []
"""Step and names of the scalars that `ListSink` received."""


class ListSink:
    def __init__(self, attempt):
        sent.clear()

    def scalars(self, step, values):
        sent.append((step, *values))

    def close(self): ...


def metrics_fields():
    data = DatasetRecord(name="d", train_samples=1)
    texts = ("name", "sweep", "run_key", "model", "strategy", "strategy_reason", "device", "torch")
    numbers = ("nodes", "ranks_per_node", "world_size", "cpu_count", "parameters", "accumulation")
    nulls = ("backend", "nccl", "comm_method", "model_flops_per_sample", "flops_method")
    fields = dict.fromkeys(texts, "x") | dict.fromkeys(numbers, 1) | dict.fromkeys(nulls)
    fields |= dict.fromkeys(("local_batch_size", "global_batch_size"), BATCH)
    return fields | {"dataset": data, "oversubscribed": False, "steps_total": 10**6}


class Run:
    """A recorder whose seconds pass at `take`. A summary takes `summary_s` of the processor."""

    summary_s = 0.0

    def __init__(self, folder):
        self.now = 1000.0
        self.seconds = self.processor_s = 0.0
        self.directory = RunDir(folder)
        sinks = [f"{__name__}:ListSink"]
        config = Config.model_validate({"telemetry": {"sinks": sinks, "gpu_every_s": 0, "warmup_steps": 0}})
        self.flush_every_s = config.telemetry.flush_every_s
        output = RunOutput(self.directory, self.directory.attempt(0))
        self.recorder = Recorder(output, alone(), config, RunFacts(metrics_fields()))
        self.recorder.clock.instant = self.monotonic
        self.recorder.start()
        self.step = 0

    def monotonic(self):
        return self.now

    time = monotonic

    def thread_time(self):
        self.processor_s += self.summary_s
        return self.processor_s

    def take(self, count, step_s):
        for _ in range(count):
            self.step += 1
            self.now += step_s
            self.recorder.step_done(StepResult(self.step, torch.tensor(1.0), 0.1))

    def live(self):
        """The newest steps in the files of metrics and progress; 0 without one."""
        self.recorder.writer.wait()
        files = (self.directory.metrics, "steps"), (self.directory.progress, "step")
        return [read_json(path)[name] if path.exists() else 0 for path, name in files]

    def lines(self):
        return [line["step"] for line in read_jsonl(self.directory.attempt(0).steps(0))]

    def progress(self):
        self.recorder.writer.wait()
        return read_json(self.directory.progress)


@pytest.fixture
def run(tmp_path, monkeypatch):
    clocks = SimpleNamespace()
    monkeypatch.setattr(recorder, "time", clocks)
    monkeypatch.setattr(live_progress, "time", clocks)
    clocks.monotonic = clocks.time = lambda: 1000.0
    made = Run(tmp_path)
    clocks.monotonic, clocks.time, clocks.thread_time = made.monotonic, made.time, made.thread_time
    return made


@pytest.mark.parametrize("step_s", [0.002, 0.1, 2.0])
def test_files_are_fresh_however_short_the_steps(run, step_s):
    for _ in range(4):
        before = run.step
        run.take(math.ceil((run.flush_every_s + 1) / step_s), step_s)
        assert min(run.live()) > before
        assert len(run.lines()) >= before


def test_a_long_run_rarely_writes_its_live_files(run, monkeypatch):
    names, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: names.append(paths[1].name) or replace(*paths))
    run.take(1300, 1.0)
    run.live()
    names.clear()
    sent.clear()
    for _ in range(180):
        run.take(1, 1.0)
        metrics, progress = run.live()
        assert run.step - progress <= live_progress.LONGEST_INTERVAL_S
        assert run.step - metrics <= live_progress.LONGEST_INTERVAL_S + run.flush_every_s
    assert {names.count(name) for name in ("progress.json", "metrics.json")} <= {2, 3}
    assert [step for step, name, *_ in sent if name == "lr"] == list(range(1301, 1481))


def test_records_do_not_wait_for_an_expensive_summary(run):
    run.summary_s = 0.1
    between, newest = [], 0
    for _ in range(250):
        run.take(1, 1.0)
        metrics, _ = run.live()
        assert run.step - len(run.lines()) <= run.flush_every_s
        if metrics != newest:
            between.append(metrics - newest)
            newest = metrics
    assert between[1:] == [0.1 / live_progress.SUMMARY_SHARE] * 2


def test_sinks_get_each_scalar_once(run):
    run.take(18, 0.3)
    run.live()
    scalars = [entry for entry in sent if not entry[1].startswith("step/")]
    rates = [(step, "lr", "memory_gib", "samples_per_s") for step in (4, 8, 12, 16)]
    assert sorted(scalars) == sorted([*rates, (10, "loss/train")])


def test_no_step_waits_for_a_disk_that_does_not_answer(run, monkeypatch):
    answering = threading.Event()
    for owner, name in ((os, "write"), (os, "replace"), (AttemptWatch, "superseded")):
        blocked = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, call=blocked: answering.wait(60) and call(*args))
    run.take(200, 0.1)
    assert not run.directory.progress.exists()
    assert run.lines() == []
    answering.set()
    assert run.recorder.finish().steps == 200
    assert run.lines() == list(range(1, 201))
    assert run.progress()["step"] == 200


def test_a_superseded_attempt_writes_no_shared_file(run):
    run.directory.attempt(1).path.mkdir()
    run.take(100, 0.1)
    run.recorder.finish()
    assert (run.live(), len(run.lines())) == ([0, 0], 100)


def test_a_state_waits_until_the_records_of_its_steps_are_written(run):
    run.take(3, run.flush_every_s / 10)
    run.recorder.writer.wait()
    assert run.lines() == [], "the flush is not due"
    run.recorder.writer.submit("a slow disk", lambda: time.sleep(0.2))
    run.recorder.state_dict()
    assert run.lines() == [1, 2, 3]


@pytest.mark.parametrize(("step_s", "every"), [(2.0, 10), (0.1, 10), (0.03, 40), (0.001, 100), (0.0, 10)])
def test_reductions_are_some_steps_and_about_a_second_apart(run, monkeypatch, step_s, every):
    reduced = []
    monkeypatch.setattr(run.recorder.steps, "reduce", lambda wait=False: reduced.append(run.step))
    run.recorder.set_pace(step_s)
    run.take(300, step_s)
    assert reduced == list(range(every, 301, every))


def test_a_run_whose_loss_was_not_finite_goes_on(run):
    run.recorder.origin = SimpleNamespace(manifest=SimpleNamespace(step=7), same_run=True)
    loss = {"history.loss": torch.tensor([7, math.nan]).double()}
    run.recorder.load_state_dict(run.recorder.state_dict() | loss)
    run.step = 7
    run.take(1, 2 * live_progress.PROGRESS_EVERY_S)
    assert run.progress()["loss"] is None
    assert [(p.step, p.loss) for p in run.recorder.finish().loss_history] == [(7, None), (8, 1.0)]


def test_a_failing_run_keeps_its_numbers_and_never_hides_the_cause(run, monkeypatch):
    run.take(3, 0.1)
    run.recorder.abort()
    metrics = read_json(run.directory.metrics)
    assert (metrics["status"], metrics["steps"]) == ("failed", 3)
    monkeypatch.setattr(run.recorder, "_metrics", lambda *_: 1 / 0)
    run.recorder.abort()  # raises nothing


def test_the_live_rate_is_of_the_newest_steps_and_the_final_one_of_all_measured_steps(run):
    run.take(20, 0.1)
    run.take(40, 0.05)
    progress = run.progress()
    assert progress["samples_per_s"] == pytest.approx(BATCH / 0.05, rel=0.01)
    assert progress["mean_samples_per_s"] == pytest.approx(BATCH * 40 / 3.0, rel=0.02)
    with run.recorder.outside_steps():
        run.now += 60  # a validation
    run.take(20, 0.05)
    assert run.progress()["samples_per_s"] == pytest.approx(BATCH / 0.05, rel=0.01)
    assert run.recorder.finish().samples_per_s == pytest.approx(BATCH * 80 / 5.0)
    assert run.progress()["samples_per_s"] == pytest.approx(BATCH * 80 / 5.0)
