"""Emulated accelerators: true shapes, and the seconds of the table in order."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from disttrain.config.config_tree import Config
from disttrain.config.parsing import Draft, check
from disttrain.config.run_key import config_key
from disttrain.config.sections.optim import OptimConfig
from disttrain.data import synthetic
from disttrain.engine.objective import Task
from disttrain.errors import ConfigError
from disttrain.models import emulated
from disttrain.models.emulated import Speed
from disttrain.models.emulated_device import make_device
from disttrain.optim.optimizer import build_optimizer
from disttrain.records.layers import LayerTable, LayerTime, parse_table

LAYERS = [
    {"name": "a", "bytes": 0, "forward_s": 1.0, "backward_s": 10.0},
    {"name": "b", "bytes": 40, "forward_s": 2.0, "backward_s": 20.0},
    {"name": "c", "bytes": 80, "forward_s": 3.0, "backward_s": 30.0},
]
TRAIN = {"steps": 1, "local_batch_size": 1}
SOURCE = synthetic.build(shape=(8,), classes=2, samples=64)


class Tape:
    """A device that records its calls; every pass ends 0.2 s late."""

    def __init__(self):
        self.calls = []
        self.advance = self.calls.append

    def start(self):
        self.calls.append("start")

    def end(self):
        self.calls.append("end")
        return 0.2


def on_tape(source=SOURCE, **options):
    model = emulated.build(source, **options)
    model.clock.device = Tape()
    return model, model.clock.device.calls


def passes(model, source=SOURCE):
    batch = default_collate([source.train[i] for i in range(4)])
    Task.of(source).batch_loss(model, batch).backward()


def test_layers_pass_their_time_in_order_and_gradients_follow_it():
    """Also a first layer without parameters, whose backward pass nothing else needs."""
    model, calls = on_tape(table=LAYERS)
    for name, layer in zip("abc", model.layers, strict=True):
        if layer.weight is not None:
            layer.weight.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(name))
    passes(model)
    assert calls == ["start", 1.0, 2.0, 3.0, "end", "start", 30.0, "c", 20.0, "b", 10.0, "end"]
    assert [p.grad.numel() for p in model.parameters()] == [10, 20]


@pytest.mark.parametrize(("samples", "share"), [(None, 1.0), (2, 2.0), (8, 0.5)])
def test_seconds_are_in_proportion_to_the_batch_of_the_table(samples, share):
    model, calls = on_tape(table={"layers": LAYERS, "samples": samples})
    passes(model)
    assert calls[1] == share


def test_equal_layers_share_the_seconds_of_a_pass_and_have_the_bytes_of_the_dtype():
    model, calls = on_tape(layers=2, layer_mb=1, forward_s=0.5, backward_s=0.75, dtype_bytes=2)
    passes(model)
    assert [(p.dtype, p.numel()) for p in model.parameters()] == [(torch.bfloat16, 1 << 19)] * 2
    assert calls == ["start", 0.25, 0.25, "end", "start", 0.375, 0.375, "end"]


def test_a_language_model_has_logits_for_each_token():
    words = synthetic.build(task="language", seq_len=16, vocab=5)
    for device in ("cpu", "meta"):
        assert emulated.build(words, forward_s=0)(torch.zeros(3, 16, device=device)).shape == (3, 16, 5)


def test_only_passes_of_steps_are_late():
    model, _ = on_tape(table=LAYERS)
    passes(model)
    assert isinstance(model.report()["emulation_late_s"], str), "no step, but a reason"
    for step in (1, 2):
        model.on_step(step)
        with model.uncounted():
            passes(model)
        passes(model)
    assert model.report() == {"emulation_late_s": pytest.approx(0.4)}


@pytest.mark.parametrize(("option", "of_table"), [(5.0, 1.0), (None, 5.0), (None, None)])
def test_an_emulated_optimizer_takes_its_time_and_changes_nothing(option, of_table):
    model, calls = on_tape(table={"layers": LAYERS, "optimizer_s": of_table}, optimizer_s=option)
    optimizer = build_optimizer(model.parameters(), OptimConfig(), model)
    if of_table is None:
        assert isinstance(optimizer, torch.optim.AdamW)
        return
    passes(model)
    optimizer.step()
    assert calls[-2:] == ["start", 5.0]
    assert not any(p.any() for p in model.parameters())


def test_jitter_is_a_function_of_rank_and_step_with_the_given_spread():
    one, other = (Speed(rank, jitter_s=0.02) for rank in (1, 2))
    extra_s = np.array([one.factor(step, 0.5) * 0.5 - 0.5 for step in range(1, 2001)])
    assert extra_s.std() == pytest.approx(0.02, rel=0.05)
    assert abs(extra_s.mean()) < 0.002
    assert one.factor(7, 0.5) == Speed(1, jitter_s=0.02).factor(7, 0.5) != other.factor(7, 0.5)
    assert min(Speed(jitter_s=100.0).factor(step, 0.1) for step in range(50)) == 0.1


@pytest.mark.parametrize(
    ("rank", "steps", "factors"),
    [("1", (3, 4), [1, 1, 1.6, 1.6, 1]), ("1", None, [1.6] * 5), ("0", None, [1] * 5)],
)
def test_the_named_ranks_are_slow_in_the_given_steps(monkeypatch, rank, steps, factors):
    monkeypatch.setenv("RANK", rank)
    model, calls = on_tape(table=LAYERS, slow_ranks=(1,), slow_s=6.6, slow_factor=1.5, slow_steps=steps)
    for step in range(1, 6):
        model.on_step(step)
        passes(model)
    assert calls[1::10] == pytest.approx(factors)


@pytest.mark.parametrize(("rank", "delay_s"), [("0", 0), ("1", 0.5)])
def test_a_slow_store_delays_the_named_ranks(monkeypatch, rank, delay_s):
    monkeypatch.setenv("RANK", rank)
    slow = synthetic.build(shape=(8,), classes=2, samples=64, delay_s=0.5, delay_ranks=(1,))
    assert getattr(slow.train, "delay_s", 0) == delay_s
    assert torch.equal(slow.train[5][0], SOURCE.train[5][0])


def test_a_gpu_sleeps_as_many_cycles_as_the_seconds_have(monkeypatch):
    slept = []
    event = SimpleNamespace(record=int, synchronize=int, elapsed_time=lambda _: 25.0)  # milliseconds
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    device = make_device(torch.device("cuda", 0))
    cycles = slept.pop()  # of the calibration
    for seconds in (0.0025, 0.0):
        device.advance(seconds)
    assert slept == [cycles, cycles // 10]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"table": "resnet50"}, "model.table"),
        ({"layer_mb": 0}, "no parameters"),
        ({"slow_s": 1.0}, "model.slow_ranks"),
        ({"slow_factor": 1.5}, "model.slow_ranks"),
        ({"slow_ranks": (0,), "slow_s": 1.0, "slow_steps": (4, 3)}, "model.slow_steps"),
        ({"slow_ranks": (0,), "slow_s": 1.0, "slow_steps": (0, 3)}, "model.slow_steps"),
        ({"table": {"layers": LAYERS, "inputs": 1.0}}, "mean 'input_s'"),
        ({"table": [{**LAYERS[0], "byte": 4}]}, "model.table: layers.0.byte"),
    ],
    ids=str,
)
def test_bad_options_and_tables_are_refused(options, key):
    with pytest.raises(ConfigError, match=key) as caught:
        emulated.build(SOURCE, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_the_present_content_of_a_table_file_enters_the_key(tmp_path, suffix):
    file = tmp_path / f"table{suffix}"
    data = {"kind": "synthetic", "shape": [8]}
    sections = {"model": {"kind": "emulated", "table": str(file)}, "data": data, "train": TRAIN}
    keys = set()
    for scale in (1.0, 1e-05):
        layer = LayerTime(name="a", bytes=4, forward_s=0.1 * scale, backward_s=0.2 * scale)
        table = LayerTable(layers=(layer, layer))
        file.write_text(table.model_dump_json())
        config = check(Draft(sections))
        assert parse_table(config.model.model_extra["table"]) == table
        keys.add(config_key(config))
    assert len(keys) == 2
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"model\.table=.* is not valid"):
        check(Draft(sections))


@pytest.mark.parametrize(
    ("sections", "emulated"),
    [
        ({}, False),
        ({"model": {"kind": "emulated"}}, True),
        ({"data": {"kind": "synthetic", "delay_s": 0.1}}, True),
    ],
)
def test_a_run_of_waits_is_emulated(sections, emulated):
    assert Config.model_validate(sections).emulated is emulated
