"""Sinks: TensorBoard's files, MLflow's store and W&B's offline files; a full disk."""

import errno
import json
import os
import struct
import sys
import time

import pytest

from disttrain.errors import ConfigError
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from disttrain.records.tracking import tracking_variables
from disttrain.runtime import log
from disttrain.telemetry import sinks
from disttrain.telemetry.background_writer import BackgroundWriter
from disttrain.telemetry.sinks import Sinks, open_sink, tensorboard
from tests.support.jobs import wait_until

mlflow = pytest.importorskip("mlflow.tracking")


@pytest.fixture
def attempt(tmp_path):
    return RunDir(tmp_path).attempt(3)


def curves(attempt):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(attempt.tensorboard)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_the_scalars_of_an_attempt(attempt, tmp_path):
    sink = open_sink("tensorboard", attempt)
    sink.scalars(1, {"loss/train": 2.5, "lr": 0.1})
    sink.scalars(2, {"loss/train": float("inf"), "lr": 1e-30})
    sink.close()
    assert attempt.tensorboard == tmp_path / "tensorboard" / "003"
    rates = [(1, pytest.approx(0.1)), (2, pytest.approx(1e-30, rel=1e-6))]
    assert curves(attempt) == {"loss/train": [(1, 2.5), (2, float("inf"))], "lr": rates}


def test_scalars_are_appended_at_intervals(attempt, monkeypatch):
    now, writes, write = [1000.0], [], os.write
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    sink = open_sink("tensorboard", attempt)
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(now[0]) or write(file, data))
    for step in range(61):
        sink.scalars(step, {"loss/train": 1.0})
        now[0] += 1
    assert writes == [1000.0 + tensorboard.WRITE_EVERY_S * count for count in range(1, 7)]
    assert curves(attempt)["loss/train"][-1][0] == 60
    sink.close()


@pytest.mark.parametrize(("number", "ends_run"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_full_disk_ends_a_sink_alone_and_another_error_the_run(attempt, monkeypatch, number, ends_run):
    calls = []

    class Sink:
        def __init__(self, name):
            self.name = name

        def scalars(self, step, values):
            calls.append((self.name, step, values))
            if self.name == "full":
                raise OSError(number, "no")

    monkeypatch.setattr(sinks, "open_sink", lambda name, attempt: Sink(name))
    writer = BackgroundWriter()
    opened = Sinks(["full", "other"], attempt, writer)
    opened.send(1, {"loss": 2.0, "null": None})
    if ends_run:
        with pytest.raises(OSError, match="no"):
            writer.wait()
        return
    opened.send(2, {})
    writer.wait()
    assert calls == [("full", 1, {"loss": 2.0}), ("other", 1, {"loss": 2.0}), ("other", 2, {})]


def test_an_unknown_sink_is_refused(attempt):
    with pytest.raises(ConfigError, match=r"telemetry\.sinks='tensorbord'"):
        open_sink("tensorbord", attempt)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made = RunDir(tmp_path / "runs" / "demo" / "n2")
    config = {"train": {"steps": 7, "lr": None}, "model": {"kind": "x" * 900}}
    write_json(made.run_json, {"name": "n2", "run_key": "abc", "config": config})
    return made


def stored(run):
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run.path.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("demo")
    return client, client.search_runs([experiment.experiment_id], order_by=["attributes.run_name"])


def take(run, attempt, values, name="mlflow", **metrics):
    sink = open_sink(name, run.attempt(attempt))
    for step, value in values:
        sink.scalars(step, {"loss/train": value})
    write_json(run.metrics, {"schema_version": 1, **metrics})
    sink.close()


def test_a_run_is_one_run_in_mlflow_through_all_attempts_and_comparable_with_others(run):
    take(run, 0, [(1, 3.0), (2, 2.5)], status="stopped", steps=2)
    assert [each.info.status for each in stored(run)[1]] == ["KILLED"]
    parts = {"composition": {"compute_s": 0.5, "comm_wait_s": None}, "emulated": False}
    take(run, 1, [(3, 2.0)], status="completed", steps=3, samples_per_s=12.5, **parts)
    other = RunDir(run.path.with_name("n4"))
    write_json(other.run_json, {"name": "n4", "run_key": "def", "config": {}})
    take(other, 0, [], status="failed", steps=1, samples_per_s=20.0)
    client, runs = stored(run)
    two, _ = runs
    names = [
        (each.info.run_name, each.info.status, each.data.metrics["summary/samples_per_s"]) for each in runs
    ]
    assert names == [("n2", "FINISHED", 12.5), ("n4", "FAILED", 20.0)]
    assert two.data.params["train.steps"] == "7"
    curve = client.get_metric_history(two.info.run_id, "loss/train")
    assert [(point.step, point.value) for point in curve] == [(1, 3.0), (2, 2.5), (3, 2.0)]
    assert two.data.metrics["summary/composition.compute_s"] == 0.5
    assert "summary/emulated" not in two.data.metrics


def test_a_store_that_fails_costs_a_line_and_does_not_end_the_run(run, monkeypatch):
    errors = []
    monkeypatch.setattr(log, "error", lambda message, **_: errors.append(message))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/no/such/folder/mlflow.db")
    take(run, 0, [(1, 3.0)], status="completed", steps=1)
    assert errors == ["MLflow record is incomplete"]


def offline_records(path):
    """Records of a `.wandb` file: blocks of 32 KiB with pieces (checksum, length, type: whole, first, middle,
    last) after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def of_kind(kind, *attempts):
    records = [record for records in attempts for record in records]
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def test_a_run_is_one_run_in_wandb_through_all_attempts(run, monkeypatch):
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name, value in {"WANDB_MODE": "offline", "WANDB_NAME": "mine"}.items():
        monkeypatch.setenv(name, value)
    variables = tracking_variables(run.identified(create=True), "abc")
    for name in variables.keys() - {"WANDB_NAME"}:
        monkeypatch.setenv(name, "")  # the sink's own are forgotten after the test
        monkeypatch.delenv(name)
    take(run, 0, [(1, 3.0), (2, 2.5)], "wandb", status="stopped", steps=2)
    take(run, 1, [(2, 2.4), (3, 2.0)], "wandb", status="completed", steps=3, samples_per_s=12.5)

    def read():
        files = sorted(run.path.glob("wandb/offline-run-*/*.wandb"))
        return [[*offline_records(path)] for path in files]

    wait_until(lambda: len(of_kind("exit", *read())) == 2)  # its service writes the end later
    attempts = read()
    named = {(each.run_id, each.run_group, each.display_name) for each in of_kind("run", *attempts)}
    assert named == {(variables["WANDB_RUN_ID"], "demo", "mine")}
    curves = []
    for records in attempts:
        points = [
            {item.key or item.nested_key[0]: json.loads(item.value_json) for item in each.item}
            for each in of_kind("history", records)
        ]
        curves.append([(point["step"], point["loss/train"]) for point in points])
    assert curves == [[(1, 3.0), (2, 2.5)], [(2, 2.4), (3, 2.0)]]
    assert [each.exit_code for each in of_kind("exit", *attempts)] == [0, 0]


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_sink_whose_package_is_not_installed_is_refused(attempt, monkeypatch, name):
    for module in ("mlflow.tracking", "wandb"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed: pip install 'disttrain\[{name}\]'"):
        open_sink(name, attempt)
