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
from disttrain.telemetry.loop.loop_telemetry import LoopTelemetry


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
