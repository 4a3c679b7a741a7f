"""Layer times: a pass is divided without gap or overlap, and a table of them replays the run."""

import json

import pytest
import torch
import yaml

import submit
from disttrain.checkpoint.state import drop_gradients
from disttrain.config.batch_plan import plan_batch
from disttrain.engine.layer_times import layer_times, mean_layer_times, write_layer_times
from disttrain.engine.train import batches_of, begin, run
from disttrain.records.json_files import read_json, write_json
from disttrain.records.layers import Layers, LayerTime, parse_table
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.runtime.run_output import RunOutput
from jobs.cli.emulate import scale_of, table_of
from tests.support.fake_runs import fake_run
from tests.support.small_models import FEATURES, Deep
from tests.support.steppers import stepper
from tests.support.stopping import alone, config


@pytest.mark.parametrize(
    ("instants", "expected"),
    [
        (
            [
                (None, 0.5), ("a", 1.0), ("b", 4.0), ("a", 4.5), (None, 5.0), ("b", 8.0), ("b", 9.0),
                ("a", 13.0), (None, 14.0),
            ],
            [("a", 4, 0.5 + 1.0, 5.0), ("b", 8, 3.0, 4.0)],
        ),
        (  # layers that are computed again in the backward pass are in the order of their gradients
            [
                (None, 0.0), ("a", 1.0), ("b", 2.0), (None, 2.0), ("a", 3.0), ("b", 4.0), ("b", 5.0),
                ("a", 6.0), (None, 6.0),
            ],
            [("a", 4, 1.0, 2.0), ("b", 8, 1.0, 2.0)],
        ),
    ],
)  # fmt: skip
def test_a_pass_is_divided_without_gap_or_overlap(instants, expected):
    times = mean_layer_times([instants, instants], {"b": 8, "a": 4})
    assert [(layer.name, layer.bytes, layer.forward_s, layer.backward_s) for layer in times] == expected


class Shared(torch.nn.Module):
    """An output layer that shares the embedding's weights, and a part that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(8, 8, bias=False)
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.frozen(self.embed(x))))


def test_layers_are_timed_and_nothing_is_left_behind():
    model = Shared()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    runner = stepper(model, plan_batch(4, None, 1), optimizer=optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers = layer_times(runner, (torch.randn(4, 8), torch.zeros(4, dtype=torch.long)), passes=3)
    assert [(layer.name, layer.bytes) for layer in layers] == [("embed", 256), ("norm", 64)]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in layers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_superseded_attempt_writes_no_layer_times(tmp_path):
    made = config(telemetry={"layer_passes": 1, "gpu_every_s": 0, "profiled_steps": 0})
    output = RunOutput.of_job(tmp_path, 0)
    with begin(made, output, alone()) as trainer:
        run(trainer, batches_of(trainer))
    written = Layers.model_validate(read_json(output.attempt.layers))
    assert (written.passes, written.samples, written.dtype_bytes) == (1, 4, 4)
    output.attempt.layers.unlink()
    output.run.attempt(1).path.mkdir()
    write_layer_times(trainer.stepper, trainer.stepper.spec.example(), trainer.recorder)
    assert not output.attempt.layers.exists()


def test_gradients_of_an_isolated_pass_are_never_all_held_at_once():
    model = Deep()
    with drop_gradients(model):
        model(torch.ones(4, FEATURES)).sum().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.ones(4, FEATURES)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def measured(tmp_path):
    fake_run(tmp_path / "runs" / "real" / "n1", overrides={"accumulation": 2})
    run = RunDir(tmp_path / "runs" / "real" / "n1")
    run.run_json.exists() or write_json(run.run_json, {})
    return run


TIMES = (("a", 400, 0.001, 0.003), ("b", 800, 0.002, 0.004))
LAYERS = Layers(
    attempt=0, device="cpu", emulated=False, passes=5, samples=8, dtype_bytes=4,
    layers=[LayerTime(name=name, bytes=size, forward_s=f, backward_s=b) for name, size, f, b in TIMES],
)  # fmt: skip


def test_a_table_is_divided_as_the_layers_and_sums_to_the_compute_of_the_run(tmp_path):
    metrics = Metrics.model_validate(read_json(measured(tmp_path).metrics))
    table = table_of(LAYERS, metrics, "real/n1")
    pass_s = metrics.composition["compute_s"] / 2
    assert table.forward_s + table.backward_s == pytest.approx(pass_s)
    assert [layer.forward_s / pass_s for layer in table.layers] == pytest.approx([0.1, 0.2])
    assert [layer.bytes for layer in table.layers] == [400, 800]
    assert (table.samples, table.optimizer_s) == (8, metrics.composition["optimizer_s"])
    assert table.input_s == metrics.composition["input_s"] / 2 > 0


@pytest.mark.parametrize(("scale", "warns"), [(0.8, False), (1.45, False), (5.925, True)])
def test_the_verb_writes_the_table_that_the_model_reads(tmp_path, capsys, scale, warns):
    run = measured(tmp_path)
    out = tmp_path / "t.yaml"
    words = ["emulate", "--runs", str(tmp_path / "runs"), "--from", "real/n1", "--out", str(out)]
    assert submit.main(words) == 2
    assert "telemetry.layer_passes" in capsys.readouterr().err
    record = LAYERS.model_dump(mode="json")
    factor = scale_of(LAYERS, Metrics.model_validate(read_json(run.metrics)), "real/n1") / scale
    for layer in record["layers"]:
        layer |= {name: layer[name] * factor for name in ("forward_s", "backward_s")}
    write_json(run.attempt(0).layers, record)
    assert submit.main([*words, "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["scale"] == pytest.approx(scale)
    assert output.err.startswith("warning") is warns
    table = parse_table(yaml.safe_load(out.read_text()))
    assert submit.main([*words[:-1], str(tmp_path / "t.json")]) == 0
    assert parse_table(json.loads((tmp_path / "t.json").read_text())) == table
    assert submit.main([*words[:-1], str(tmp_path / "t.txt")]) == 2
    assert not (tmp_path / "t.txt").exists()
