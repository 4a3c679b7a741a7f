"""Telemetry of a user's own loop, on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.telemetry.loop.loop_config import optimizer_options
from disttrain.telemetry.loop.loop_telemetry import LoopTelemetry
from jobs.status.run_state import read_state


@contextmanager
def opened(
    folder: Path, **options: Any
) -> Iterator[Callable[[], Iterator[tuple[LoopTelemetry, int, Tensor]]]]:
    """A loop over 12 batches: the telemetry, the number of the batch from 1 on, and its loss."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    settings = {"warmup_steps": 1, "profiled_steps": 0, "sinks": [], "gpu_every_s": 0}
    options = {"steps": 12, "samples_per_step": 2, "telemetry": settings} | options
    with LoopTelemetry(folder, model, optimizer, **options) as telemetry:

        def steps() -> Iterator[tuple[LoopTelemetry, int, Tensor]]:
            for number, inputs in enumerate(telemetry.steps([torch.ones(2, 4)] * 12), 1):
                loss = model(inputs).square().mean()
                loss.backward()
                optimizer.step()
                yield telemetry, number, loss

        yield steps


def test_a_step_without_a_recorded_loss_has_none(tmp_path: Path) -> None:
    recorded = {}
    with opened(tmp_path) as steps:
        for telemetry, number, loss in steps():
            if number % 5 == 0:
                telemetry.record_loss(loss)
                recorded[number] = pytest.approx(loss.item())
    losses = {line["step"]: line["loss"] for line in read_jsonl(RunDir(tmp_path).attempt(0).steps(0))}
    assert losses == {step: recorded.get(step) for step in range(1, 13)}
    history = read_json(RunDir(tmp_path).metrics)["loss_history"]
    assert {point["step"]: point["loss"] for point in history} == recorded


def test_the_record_of_a_loop_holds_its_own_optimizer_and_no_defaults(tmp_path: Path) -> None:
    with opened(tmp_path) as steps:
        list(steps())
    config = read_json(RunDir(tmp_path).run_json)["config"]
    assert set(config) == {"model", "train", "resources", "telemetry", "optim"}
    assert config["train"] == {"steps": 12, "local_batch_size": 2}
    assert config["model"] == {"kind": "torch.nn.modules.linear:Linear"}
    assert config["telemetry"]["warmup_steps"] == 1
    optim = config["optim"]
    assert optim["name"] == "torch.optim.adamw:AdamW"
    assert (optim["lr"], optim["weight_decay"], optim["betas"]) == (1e-3, 0.01, [0.9, 0.999])


def test_options_on_which_parameter_groups_differ_are_left_out() -> None:
    weight, bias = nn.Linear(2, 2).parameters()
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "lr": torch.tensor(0.5)}]
    options = optimizer_options(torch.optim.SGD(groups, lr=torch.tensor(0.1), momentum=0.9))
    assert options["momentum"] == 0.9
    assert not {"lr", "weight_decay", "params"} & set(options)


def test_other_optimizers_give_other_run_keys(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.1)):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with LoopTelemetry(tmp_path / name, model, optimizer, steps=1, samples_per_step=2) as telemetry:
            for inputs in telemetry.steps([torch.ones(2, 4)]):
                model(inputs).sum().backward()
                optimizer.step()
    a, b, c = (read_json(RunDir(tmp_path / name).run_json)["run_key"] for name in "abc")
    assert a == c != b


def test_a_loop_that_ends_before_its_announced_steps_is_not_done(tmp_path: Path) -> None:
    with opened(tmp_path, steps=30) as steps:
        list(steps())
    run = RunDir(tmp_path)
    state = read_state(run)
    assert (state.state, state.cause, state.step, state.steps) == ("failed", "stopped", 12, 30)
    assert state.message == "at step 12 of 30"
    assert read_json(run.metrics)["status"] == "stopped"
