"""What layers take: passes are cut without gap or overlap; a table of them replays the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

import submit
from disttrain.checkpoint.state import drop_gradients
from disttrain.config.batch_plan import plan_batch
from disttrain.engine.layer_times import layer_times, mean_layer_times
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from disttrain.records.layers import Layers, LayerTime, parse_table
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from jobs.cli.emulate import scale_of, table_of
from tests.support.fake_runs import fake_run
from tests.support.small_models import FEATURES, Deep
from tests.support.steppers import stepper


def test_a_pass_is_cut_without_gap_or_overlap():
    forward = [("a", 1.0), ("b", 4.0), ("a", 4.5)]
    backward = [("b", 8.0), ("b", 9.0), ("a", 13.0)]
    instants = [(None, 0.5), *forward, (None, 5.0), *backward, (None, 14.0)]
    first, last = mean_layer_times([instants, instants], {"a": 4, "b": 8})
    assert (first.name, first.bytes, first.forward_s, first.backward_s) == ("a", 4, 0.5 + 1.0, 5.0)
    assert (last.name, last.bytes, last.forward_s, last.backward_s) == ("b", 8, 3.0, 4.0)
    assert first.forward_s + last.forward_s == 4.5
    assert first.backward_s + last.backward_s == 9.0


def test_layers_that_are_computed_again_in_the_backward_pass_are_in_the_order_of_their_gradients():
    again = [("a", 3.0), ("b", 4.0), ("b", 5.0), ("a", 6.0)]
    instants = [(None, 0.0), ("a", 1.0), ("b", 2.0), (None, 2.0), *again, (None, 6.0)]
    times = mean_layer_times([instants], {"b": 8, "a": 4})
    assert [(layer.name, layer.backward_s) for layer in times] == [("a", 2.0), ("b", 2.0)]


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
    plan = plan_batch(4, None, 1)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    runner = stepper(model, plan, optimizer=optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = (torch.randn(4, 8), torch.zeros(4, dtype=torch.long))
    layers = layer_times(runner, batch, passes=3)
    assert [(layer.name, layer.bytes) for layer in layers] == [("embed", 256), ("norm", 64)]
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in layers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def measured(tmp_path: Path) -> RunDir:
    fake_run(tmp_path / "runs" / "real" / "n1", overrides={"accumulation": 2})
    run = RunDir(tmp_path / "runs" / "real" / "n1")
    run.run_json.exists() or write_json(run.run_json, {})
    return run


LAYERS = Layers(
    attempt=0,
    device="cpu",
    emulated=False,
    passes=5,
    samples=8,
    dtype_bytes=4,
    layers=[
        LayerTime(name="a", bytes=400, forward_s=0.001, backward_s=0.003),
        LayerTime(name="b", bytes=800, forward_s=0.002, backward_s=0.004),
    ],
)


def test_a_table_is_divided_as_the_layers_and_sums_to_the_runs_compute(tmp_path):
    metrics = Metrics.model_validate(read_json(measured(tmp_path).metrics))
    table = table_of(LAYERS, metrics, "real/n1")
    per_pass_s = metrics.composition["compute_s"] / 2
    assert table.forward_s + table.backward_s == pytest.approx(per_pass_s)
    assert [layer.forward_s / per_pass_s for layer in table.layers] == pytest.approx([0.1, 0.2])
    assert [layer.bytes for layer in table.layers] == [400, 800]
    assert (table.samples, table.optimizer_s) == (8, metrics.composition["optimizer_s"])
    assert table.input_s == metrics.composition["input_s"] / 2 > 0
    with pytest.raises(ConfigError, match="has no measured steps"):
        table_of(
            LAYERS, metrics.model_copy(update={"composition": {"compute_s": None, "optimizer_s": None}}), "x"
        )


def test_the_verb_writes_what_the_model_reads(tmp_path, capsys):
    run = measured(tmp_path)
    words = ["emulate", "--runs", str(tmp_path / "runs"), "--from", "real/n1"]
    out = tmp_path / "t.yaml"
    assert submit.main([*words, "--out", str(out)]) == 2
    assert "did not time its layers; use a run with --set telemetry.layer_passes=10" in (
        capsys.readouterr().err
    )
    write_json(run.attempt(0).layers, LAYERS.model_dump(mode="json"))
    assert submit.main([*words, "--out", str(out)]) == 0
    assert f"--set model.table={out}" in capsys.readouterr().out
    table = parse_table(yaml.safe_load(out.read_text()))
    assert submit.main([*words, "--out", str(tmp_path / "t.json")]) == 0
    assert parse_table(json.loads((tmp_path / "t.json").read_text())) == table
    assert [layer.name for layer in table.layers] == ["a", "b"]
    assert submit.main([*words, "--out", str(tmp_path / "t.txt")]) == 2
    assert not (tmp_path / "t.txt").exists()


@pytest.mark.parametrize(("scale", "warns"), [(0.8, False), (1.45, False), (5.925, True)])
def test_what_layers_were_multiplied_by_is_said_and_what_a_large_factor_means(tmp_path, capsys, scale, warns):
    run = measured(tmp_path)
    metrics = Metrics.model_validate(read_json(run.metrics))
    quick = scale_of(LAYERS, metrics, "real/n1") / scale
    layers = [
        layer.model_copy(
            update={"forward_s": layer.forward_s * quick, "backward_s": layer.backward_s * quick}
        )
        for layer in LAYERS.layers
    ]
    write_json(run.attempt(0).layers, LAYERS.model_copy(update={"layers": layers}).model_dump(mode="json"))
    words = [
        "emulate",
        "--runs",
        str(tmp_path / "runs"),
        "--from",
        "real/n1",
        "--out",
        str(tmp_path / "t.yaml"),
    ]
    assert submit.main(words) == 0
    said = capsys.readouterr()
    assert (
        f"layer times are scaled by {scale:.4g} to sum to the compute time of the measured steps" in said.out
    )
    assert said.err.count("\n") == warns
    assert (
        f"warning: the steps computed {scale:.3g} times as long as the isolated layer passes" in said.err
    ) == warns
    assert submit.main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["scale"] == pytest.approx(scale)
    assert said.err.startswith("warning") == warns


def test_gradients_of_an_isolated_pass_are_never_all_held_at_once():
    model = Deep()
    with drop_gradients(model):
        model(torch.ones(4, FEATURES)).sum().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.ones(4, FEATURES)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
