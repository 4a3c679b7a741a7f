"""The memory estimate: against the peak of PyTorch's allocator, and the parts of each strategy."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.engine import memory_estimate
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.memory_estimate import MemoryEstimate, estimate
from disttrain.engine.objective import Task
from disttrain.transforms import transforms_of
from jobs.cli.preview import memory_text
from tests.support.step_memory import allocated_peak

GPT = {"kind": "gpt", "layers": 3, "width": 64, "heads": 2}
LANGUAGE = {"kind": "synthetic", "task": "language", "vocab": 512, "seq_len": 64, "samples": 8}


def config(ranks: int = 1, **sections: dict[str, Any]) -> Config:
    given = {
        "model": GPT,
        "data": LANGUAGE,
        "train": {"steps": 1, "local_batch_size": 8},
        "resources": {"nodes": ranks // 2 or 1, "gpus_per_node": min(ranks, 2)},
    }
    return Config.model_validate({**given, **sections})


def measured_peak(made: Config) -> int:
    """Peak bytes of the CPU allocator in a forward and a backward pass."""
    source = build_source(made.data)
    model = build_model(made.model, source)
    for transform in transforms_of(made, torch.device("cpu")):
        model = transform(model)
    samples = made.train.local_batch_size
    assert isinstance(samples, int)
    batch = tuple(value.expand(samples, *value.shape).contiguous() for value in source.train[0])
    task = Task.of(source, made.memory.loss_in_model)
    return allocated_peak(lambda: task.batch_loss(model, batch).backward())


@pytest.mark.parametrize("chunk", [None, 256], ids=["whole loss", "loss chunks"])
@pytest.mark.parametrize("mode", ["none", "full", "selective"])
def test_the_estimate_agrees_with_the_allocator(mode: str, chunk: int | None) -> None:
    data = LANGUAGE if chunk is None else {**LANGUAGE, "vocab": 8192}  # the peak is within the loss
    made = config(memory={"activation_checkpointing": mode, "loss_chunk_tokens": chunk}, data=data)
    found = estimate(made)
    measured = measured_peak(made)
    assert found.gradients_bytes + found.activations_bytes == pytest.approx(measured, rel=0.01)


def test_a_strategy_changes_the_state_and_not_the_activations() -> None:
    train = {"steps": 1, "local_batch_size": 8, "global_batch_size": 64}
    names = ("ddp", "fsdp", "hsdp")
    found = {name: estimate(config(4, train=train, parallel={"strategy": name})) for name in names}
    parameters = found["ddp"].parameters_bytes
    assert found["ddp"].total_bytes == 5 * parameters + found["ddp"].activations_bytes  # buckets: a copy
    assert found["ddp"].optimizer_bytes == 2 * parameters
    assert found["fsdp"].parameters_bytes == pytest.approx(parameters / 4, abs=4)
    assert found["hsdp"].parameters_bytes == pytest.approx(parameters / 2, abs=4)  # two ranks of a node
    assert {each.activations_bytes for each in found.values()} == {found["ddp"].activations_bytes}
    assert found["fsdp"].communication_bytes > 0


def test_activations_grow_with_the_batch_and_auto_counts_one_sample() -> None:
    found = {
        size: estimate(config(train={"steps": 1, "local_batch_size": size})) for size in (1, 4, 8, 12, "auto")
    }
    assert found["auto"] == found[1]
    steps = [found[b].total_bytes - found[a].total_bytes for a, b in ((4, 8), (8, 12))]
    assert steps[0] == pytest.approx(steps[1], rel=0.01)
    assert found[12].optimizer_bytes == found[1].optimizer_bytes


def test_runs_without_an_estimate_give_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = [
        config().as_dict(),
        config(model={"kind": "emulated"}).as_dict(),
        config(model={"kind": "mlp"}).as_dict(),
        config(8).as_dict(),
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(configs)))
    memory_estimate.main()
    answers = json.loads(capsys.readouterr().out)
    assert MemoryEstimate(**answers[0]).strategy == "single"
    assert answers[1] == {"reason": "model.kind=emulated has no activations"}
    assert answers[2]["reason"].startswith("model.kind=mlp takes numbers")
    candidates = [MemoryEstimate(**each) for each in answers[3].pop("candidates")]
    assert answers[3] == {"strategy": "auto"}
    assert [each.strategy for each in candidates] == ["ddp", "hsdp", "fsdp"]
    assert candidates[0].total_bytes > candidates[1].total_bytes > candidates[2].total_bytes
    answers[3]["candidates"] = [asdict(each) for each in candidates]
    text = memory_text(
        [{"run": name, "memory": answer} for name, answer in zip("abcd", answers, strict=True)]
    )
    rows = [line.split() for line in text.splitlines() if line.startswith("d ")]
    assert [row[:4] for row in rows] == [["d", "auto:", each, "8"] for each in ("ddp", "hsdp", "fsdp")]
    assert "\nauto: the ranks take the first of these strategies that fits" in text
    assert any(line.split()[:3] == ["a", "single", "8"] for line in text.splitlines())
    assert "\nb: no estimate: model.kind=emulated has no activations\n" in text
    assert memory_text([{"run": "a"}]) == ""
