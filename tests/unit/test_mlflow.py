"""Runs in MLflow's own store, read by MLflow's own client."""

import pytest

from disttrain.records.communication import CommSummary
from disttrain.records.hardware import GpuSummary, ProcessSummary
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from disttrain.telemetry import sinks
from tests.support.fake_runs import fake_run

mlflow = pytest.importorskip("mlflow.tracking")


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


def take(run, attempt, values, **metrics):
    sink = sinks.open_sink("mlflow", run.attempt(attempt))
    for step, value in values:
        sink.scalars(step, {"loss/train": value})
    write_json(run.metrics, {"schema_version": 1, "composition": {}, **metrics})
    sink.close()


def test_a_run_is_one_run_there_through_all_attempts_and_comparable_with_others(run):
    take(run, 0, [(1, 3.0), (2, 2.5)], status="stopped", steps=2)
    client, [first] = stored(run)
    assert first.info.status == "KILLED"
    done = {"samples_per_s": 12.5, "composition": {"compute_s": 0.5, "comm_wait_s": None}, "emulated": False}
    take(run, 1, [(3, 2.0)], status="completed", steps=3, **done)
    other = RunDir(run.path.with_name("n4"))
    write_json(other.run_json, {"name": "n4", "run_key": "def", "config": {}})
    take(other, 0, [(1, 3.1)], status="completed", steps=1, samples_per_s=20.0)
    client, [two, four] = stored(run)
    assert (two.info.run_name, two.info.status) == ("n2", "FINISHED")
    assert two.data.params["train.steps"] == "7"
    curve = client.get_metric_history(two.info.run_id, "loss/train")
    assert [(point.step, point.value) for point in curve] == [(1, 3.0), (2, 2.5), (3, 2.0)]
    assert two.data.metrics["summary/composition.compute_s"] == 0.5
    rates = [each.data.metrics["summary/samples_per_s"] for each in (two, four)]
    assert rates == [12.5, 20.0]
    assert "summary/emulated" not in two.data.metrics


def whole(model, **values):
    """A record with a number wherever one may be."""
    return {
        name: values.get(name, 1.5 if "float" in str(field.annotation) else 3)
        for name, field in model.model_fields.items()
    }


def test_every_figure_of_the_summary_can_be_compared_and_no_history_is_there(run):
    parts = {
        "comm": whole(CommSummary, method="m", collectives=[]),
        "gpu": whole(GpuSummary, throttled={"power_cap": 0.25}, xids={"79": 1}),
        "processes": whole(ProcessSummary),
    }
    fake_run(run.path, nodes=2, overrides=parts)
    metrics = read_json(run.metrics)
    sinks.open_sink("mlflow", run.attempt(0)).close()
    _, [one] = stored(run)
    found = {name.removeprefix("summary/"): value for name, value in one.data.metrics.items()}
    for part in ("step_time", "composition", "comm", "gpu", "processes", "dataset"):
        numbers = {
            name: value
            for name, value in metrics[part].items()
            if isinstance(value, int | float) and name != "schema_version"
        }
        assert len(numbers) > 2
        assert {name: found[f"{part}.{name}"] for name in numbers} == numbers
    assert (found["gpu.throttled.power_cap"], found["gpu.xids.79"]) == (0.25, 1)
    assert found["steps"] == metrics["steps"]
    assert not [name for name in found if name.endswith("schema_version")]
    assert len(found) < 120, "one value a figure"


def test_a_store_that_fails_costs_a_line_and_nothing_else(run, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/no/such/folder/mlflow.db")
    take(run, 0, [(1, 3.0)], status="completed", steps=1)
    assert "MLflow record is incomplete" in caplog.text
