"""Telemetry of a loop whose model and optimizer Accelerate, Fabric or Lightning wrapped, on one rank."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from disttrain import LoopTelemetry
from disttrain.engine.own_loop import unwrap_model
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.run_directory import RunDir

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-loop.md"
QUIET = {"warmup_steps": 1, "profiled_steps": 0, "sinks": [], "gpu_every_s": 0}
STEPS = 4


def accelerate(model, optimizer):
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(model, optimizer)


def fabric(model, optimizer):
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup(model, optimizer)


def lightning(model, optimizer):
    from lightning.pytorch.core.optimizer import LightningOptimizer

    wrapped = LightningOptimizer(optimizer)
    wrapped._strategy = type(
        "Strategy", (), {"optimizer_step": lambda self, own, closure: own.step(closure)}
    )()
    return model, wrapped


def wrapped_by(wrapper):
    model = nn.Linear(4, 2)
    return wrapper(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("wrapper", [accelerate, fabric, lightning])
def test_a_wrapped_loop_is_measured_like_a_plain_one(tmp_path: Path, wrapper) -> None:
    model, optimizer = wrapped_by(wrapper)
    with LoopTelemetry(
        tmp_path, model, optimizer, steps=STEPS, samples_per_step=2, telemetry=QUIET
    ) as telemetry:
        for _ in range(STEPS):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            telemetry.step()
    lines = list(read_jsonl(RunDir(tmp_path).attempt(0).steps(0)))
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["compute_s"] > 0 and line["optimizer_s"] > 0 for line in lines)
    config = read_json(tmp_path / "run.json")["config"]
    assert config["model"]["kind"] == "torch.nn.modules.linear:Linear"
    assert config["optim"] == {**config["optim"], "name": "torch.optim.sgd:SGD", "lr": 0.1}


def test_the_callback_in_the_docs_measures_a_hugging_face_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    (code,) = re.findall(r"```python\n(class Telemetry.*?)```", PAGE.read_text(), re.DOTALL)
    scope = {"TrainerCallback": transformers.TrainerCallback, "LoopTelemetry": LoopTelemetry}
    exec(code, scope)
    options = {"max_steps": STEPS, "use_cpu": True, "report_to": "none", "save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        str(tmp_path), gradient_accumulation_steps=2, per_device_train_batch_size=3, **options
    )
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
    shape = transformers.GPT2Config(
        vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(shape)
    scope["trainer"] = transformers.Trainer(
        model, arguments, train_dataset=data, callbacks=[scope["Telemetry"]()]
    )
    monkeypatch.chdir(tmp_path)
    scope["trainer"].train()
    (run_dir,) = (tmp_path / "runs" / "by-hand").iterdir()
    lines = list(read_jsonl(RunDir(run_dir).attempt(0).steps(0)))
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["compute_s"] > 0 and line["optimizer_s"] > 0 for line in lines)
    assert {line["samples"] for line in lines} == {6}


def test_the_module_of_a_lightning_trainer_is_the_one_that_it_wraps() -> None:
    from lightning.pytorch import LightningModule

    module, wrapped = LightningModule(), nn.Linear(4, 2)
    module._trainer = SimpleNamespace(model=wrapped)
    assert unwrap_model(module) is wrapped


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_what_has_no_hooks_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    model = nn.Linear(4, 2)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), name: object()}
    with pytest.raises(ConfigError, match=f"{name}=object: must be a torch"):
        LoopTelemetry(tmp_path / "run", **parts, steps=STEPS, samples_per_step=2)
    assert not (tmp_path / "run").exists()


def test_a_step_of_a_pass_ends_once(tmp_path: Path) -> None:
    model, optimizer = wrapped_by(lambda *parts: parts)
    telemetry = LoopTelemetry(tmp_path, model, optimizer, steps=1, samples_per_step=2, telemetry=QUIET)
    with telemetry:
        passing = telemetry.steps([0])
        next(passing)
        with pytest.raises(RuntimeError, match="within steps"):
            telemetry.step()
        assert list(passing) == []
    assert telemetry.metrics.steps == 1
