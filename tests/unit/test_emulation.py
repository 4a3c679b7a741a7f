"""Emulated accelerators: true shapes, layers in order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from disttrain.config.parsing import Draft, check, load
from disttrain.config.run_key import config_key
from disttrain.data import synthetic
from disttrain.data.source import Source
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError
from disttrain.models import emulated
from disttrain.models import emulated_device as devices
from disttrain.models.emulated import Emulated, EmulatedOptimizer, Speed
from disttrain.models.hooks import hooks_of
from disttrain.optim.optimizer import build_optimizer
from disttrain.records.layers import LayerTable, LayerTime, parse_table


class Tape:
    """A device that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str | float] = []

    def start(self) -> None:
        self.said.append("start")

    def advance(self, seconds: float) -> None:
        self.said.append(round(seconds, 9))

    def end(self) -> float:
        self.said.append("end")
        return 0.2


LAYERS = [
    {"name": "a", "bytes": 40, "forward_s": 1.0, "backward_s": 10.0},
    {"name": "b", "bytes": 0, "forward_s": 2.0, "backward_s": 20.0},
    {"name": "c", "bytes": 80, "forward_s": 3.0, "backward_s": 30.0},
]
SOURCE = synthetic.build(shape=(8,), classes=2, samples=64)


def on_tape(monkeypatch: pytest.MonkeyPatch, source: Source = SOURCE, **options) -> tuple[Emulated, Tape]:
    tape = Tape()
    monkeypatch.setattr("disttrain.models.emulated.make_device", lambda device: tape)
    return emulated.build(source, **options), tape


def passes(model: Emulated, source: Source = SOURCE, samples: int = 4) -> None:
    inputs, targets = default_collate([source.train[i] for i in range(samples)])
    Task.of(source).batch_loss(model, (inputs, targets)).backward()


def test_layers_pass_their_time_in_order_and_gradients_follow_it(monkeypatch):
    model, tape = on_tape(monkeypatch, table=LAYERS)
    for name in ("a", "c"):
        weight = model.layers[["a", "b", "c"].index(name)].weight
        weight.register_post_accumulate_grad_hook(lambda p, name=name: tape.said.append(name))
    passes(model)
    assert tape.said == ["start", 1.0, 2.0, 3.0, "end", "start", 30.0, "c", 20.0, 10.0, "a", "end"]
    assert [p.numel() for p in model.parameters()] == [10, 20]
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())


def test_the_first_layer_takes_its_backward_even_without_parameters(monkeypatch):
    model, tape = on_tape(monkeypatch, table=[LAYERS[1], LAYERS[0]])
    passes(model)
    assert tape.said[-3:] == [10.0, 20.0, "end"]


@pytest.mark.parametrize(("samples", "share"), [(None, 1.0), (2, 2.0), (8, 0.5)])
def test_seconds_are_in_proportion_to_the_batch_where_the_table_says_so(monkeypatch, samples, share):
    model, tape = on_tape(monkeypatch, table={"layers": LAYERS[:1], "samples": samples})
    passes(model, samples=4)
    assert tape.said[1] == share


def test_half_precision_halves_the_numbers_and_keeps_the_bytes(monkeypatch):
    model, _ = on_tape(monkeypatch, layers=2, layer_mb=1, dtype_bytes=2)
    (first, _) = model.parameters()
    assert (first.dtype, first.numel()) == (torch.bfloat16, 1 << 19)
    passes(model)


def test_language_and_regression_sources_get_what_they_need(monkeypatch):
    words = synthetic.build(task="language", seq_len=16, vocab=2, samples=8)
    model, tape = on_tape(monkeypatch, words, table=LAYERS)
    passes(model, words)
    assert tape.said[-1] == "end"


def test_only_passes_of_steps_are_late(monkeypatch):
    model, _ = on_tape(monkeypatch, table=LAYERS)
    passes(model)
    assert model.report() == {"emulation_late_s": "this attempt did no step"}
    for step in (1, 2):
        model.on_step(step)
        with model.uncounted():
            passes(model)
        passes(model)  # forward and backward pass end 0.2 s late each
    assert model.report() == {"emulation_late_s": pytest.approx(0.4)}


def test_an_emulated_optimizer_takes_its_time_and_changes_nothing(monkeypatch):
    model, tape = on_tape(monkeypatch, table=LAYERS, optimizer_s=5.0)
    optim = check(Draft({"train": {"steps": 1, "local_batch_size": 1}})).optim
    optimizer = build_optimizer(model.parameters(), optim, hooks_of(model))
    assert isinstance(optimizer, EmulatedOptimizer)
    passes(model)
    before = [p.clone() for p in model.parameters()]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert tape.said[-2:] == ["start", 5.0]
    assert all(
        torch.equal(p, old) and p.grad is None for p, old in zip(model.parameters(), before, strict=True)
    )
    real, _ = on_tape(monkeypatch, table=LAYERS)
    assert isinstance(build_optimizer(real.parameters(), optim, hooks_of(real)), torch.optim.AdamW)


def test_jitter_is_a_function_of_rank_and_step_with_the_spread_it_says():
    one, other = Speed(rank=1, jitter_s=0.02), Speed(rank=2, jitter_s=0.02)
    extra = np.array([one.factor(step, 0.5) * 0.5 - 0.5 for step in range(1, 2001)])
    assert extra.std() == pytest.approx(0.02, rel=0.05)
    assert abs(extra.mean()) < 0.002
    assert one.factor(7, 0.5) == Speed(rank=1, jitter_s=0.02).factor(7, 0.5)
    assert len({one.factor(7, 0.5), one.factor(8, 0.5), other.factor(7, 0.5)}) == 3
    assert min(Speed(jitter_s=100.0).factor(step, 0.1) for step in range(50)) == 0.1


def test_a_rank_is_slow_for_a_while():
    speed = Speed(slow_s=0.1, slow_factor=1.5, slow_steps=(3, 4))
    assert [speed.factor(step, 0.5) for step in range(1, 6)] == pytest.approx([1, 1, 1.7, 1.7, 1])


def test_only_the_ranks_that_are_named_are_slow(monkeypatch):
    for rank, first in (("0", 1.0), ("1", 1.0 * (1.5 + 6.6 / 66))):
        monkeypatch.setenv("RANK", rank)
        model, tape = on_tape(monkeypatch, table=LAYERS, slow_ranks=(1,), slow_s=6.6, slow_factor=1.5)
        model.on_step(1)
        passes(model)
        assert tape.said[1] == pytest.approx(first)


@pytest.mark.parametrize("where", ["option", "table"])
def test_the_optimizer_takes_its_seconds(monkeypatch, where):
    table = {"layers": LAYERS, "optimizer_s": 5.0 if where == "table" else 1.0}
    options = {"optimizer_s": 5.0} if where == "option" else {}
    model, tape = on_tape(monkeypatch, table=table, **options)
    passes(model)
    model.make_optimizer().step()
    assert tape.said[-1] == 5.0


def test_a_gpu_sleeps_as_many_cycles_as_the_seconds_have(monkeypatch):
    slept: list[int] = []
    monkeypatch.setattr(devices, "_cycles_per_second", lambda device: 1.5e9)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    device = devices.make_device(torch.device("cuda", 0))
    device.start()
    device.advance(0.002)
    device.advance(0.0)
    device.end()
    assert slept == [3_000_000]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "resnet50"}, r"model.table='resnet50': needed is a file"),
        ({"layer_mb": 0}, r"no parameters"),
        ({"slow_s": 1.0}, r"need model.slow_ranks"),
        ({"slow_ranks": (0,), "slow_s": 1.0, "slow_steps": (4, 3)}, r"model.slow_steps=\[4, 3\]: first step"),
        (
            {"table": {"layers": LAYERS, "input_s": -1.0}},
            r"model.table: input_s: .*greater than or equal to 0",
        ),
        ({"table": {"layers": LAYERS, "inputs": 1.0}}, r"model.table: inputs: .*did you mean 'input_s'"),
        ({"table": [{**LAYERS[0], "byte": 4}]}, r"model.table: layers.0.byte: .*allowed: .*mean 'bytes'"),
        ({"table": [{"name": "a"}]}, r"model.table: layers.0.bytes: field required"),
        ({"table": []}, r"model.table: layers: "),
    ],
)
def test_bad_tables_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        emulated.build(SOURCE, **options)
    assert "\n" not in str(caught.value)


CONFIG = """\
model: {kind: emulated, table: TABLE}
data: {kind: synthetic, shape: [8], classes: 2}
train: {steps: 2, local_batch_size: 2}
"""


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_table_in_a_file_is_part_of_what_the_run_is(tmp_path, suffix):
    file, config = tmp_path / f"table{suffix}", tmp_path / "run.yaml"
    config.write_text(CONFIG.replace("TABLE", str(file)))
    keys = set()
    for scale in (1.0, 1e-05):
        layer = LayerTime(name="a", bytes=4, forward_s=0.1 * scale, backward_s=0.2 * scale)
        table = LayerTable(layers=(layer, layer))
        file.write_text(table.model_dump_json())
        found = check(load(config))
        assert parse_table(found.model.model_extra["table"]) == table
        keys.add(config_key(found))
    assert len(keys) == 2
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"run.yaml:1: model.table=.* is not valid"):
        check(load(config))
    file.unlink()
    with pytest.raises(ConfigError, match=r"run.yaml:1: model.table=.* cannot be read: No such file"):
        check(load(config))


def test_what_waits_is_emulated_and_what_only_loads_slowly_too():
    base = {"train": {"steps": 1, "local_batch_size": 1}}
    real = check(Draft(base))
    waits = check(Draft({**base, "model": {"kind": "emulated"}}))
    slow = check(Draft({**base, "data": {"kind": "synthetic", "task": "language", "delay_s": 0.1}}))
    assert [c.emulated for c in (real, waits, slow)] == [False, True, True]


def test_a_slow_store_delays_batches_on_the_ranks_it_is_for(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(synthetic, "wait_until", lambda deadline: waited.append(deadline))
    plain = synthetic.build(shape=(4,), samples=8)
    for rank, expected in (("0", 0), ("1", 1)):
        monkeypatch.setenv("RANK", rank)
        slow = synthetic.build(shape=(4,), samples=8, delay_s=0.5, delay_ranks=(1,))
        fetch = getattr(slow.train, "__getitems__", None)
        batch = fetch([0, 3, 5]) if fetch else [slow.train[i] for i in (0, 3, 5)]
        assert all(torch.equal(a[0], plain.train[i][0]) for a, i in zip(batch, (0, 3, 5), strict=True))
        assert len(waited) == expected


def test_the_shipped_sweep_is_what_its_comment_says():
    draft = load(Path(__file__).parents[2] / "sweeps" / "emulated.yaml")
    table = json.loads(json.dumps(draft.data["model"]))
    assert table["layers"] * table["layer_mb"] == 32
    assert draft.data["sweep"]["axes"]["resources.nodes"] == [1, 2, 4, 8]
