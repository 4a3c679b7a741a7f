"""An independent check of the trainer: ten steps against a plain PyTorch loop that uses none of its modules.

The loop states the batches, the learning rates, the clipping and the optimizer in terms of PyTorch and NumPy
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from disttrain.config.config_tree import Config
from disttrain.engine.train import batches_of, begin, run
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.small_models import Net, source
from tests.support.stopping import alone
from tests.support.tolerance import approx_losses, assert_close, tolerance

pytestmark = pytest.mark.multiprocess

STEPS, BATCH, SAMPLES, VALID, SEED = 10, 12, 40, 13, 5
WARMUP, PEAK, CLIP, DECAY = 4, 0.05, 0.65, 0.1
EVAL_SAMPLES = 5
OPTIMIZERS = {"sgd": {"momentum": 0.7}, "adamw": {"betas": [0.8, 0.99]}}


def config(name: str, ranks: int) -> Config:
    """The run of the plain loop: batches of 12 in micro-batches of 3, so at least two per rank and step."""
    return Config.model_validate(
        {
            "model": {"kind": "tests.support.small_models:Net"},
            "data": {"kind": "tests.support.small_models:source", "samples": SAMPLES, "valid": VALID},
            "train": {
                "steps": STEPS,
                "local_batch_size": 3,
                "global_batch_size": BATCH,
                "seed": SEED,
                "eval_every": 5,
                "eval_samples": EVAL_SAMPLES,
                "log_every": 1,
            },
            "optim": {
                "name": name,
                "lr": PEAK,
                "weight_decay": DECAY,
                "warmup_steps": WARMUP,
                "schedule": "linear",
                "grad_clip": CLIP,
                **OPTIMIZERS[name],
            },
            "resources": {"nodes": ranks, "device": "cpu"},
            "telemetry": {"sinks": [], "profiled_steps": 0},
        }
    )


def trained(world: World, made: Config, folder: Path) -> tuple[dict[str, Tensor], list[float], list[Any]]:
    """Parameters, training losses and validations of the trainer."""
    with begin(made, RunOutput.of_job(folder, 0), world) as trainer:
        run(trainer, batches_of(trainer))
    metrics = trainer.metrics()
    parameters = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    validations = [(point.step, point.samples, point.loss) for point in metrics.eval_history]
    return parameters, [point.loss for point in metrics.loss_history], validations


def plain_batches() -> Iterator[list[int]]:
    """Sample indices by step: a permutation for each epoch, one after the other, cut into batches."""
    epochs = [np.random.default_rng([SEED, epoch]).permutation(SAMPLES) for epoch in range(3)]
    stream = np.concatenate(epochs).tolist()
    for step in range(STEPS):
        yield stream[step * BATCH : (step + 1) * BATCH]


def plain_learning_rate(step: int) -> float:
    """Linear to the peak in `WARMUP` steps, then linear to zero at the last step; `step` counts from 1."""
    return PEAK * (step / WARMUP if step <= WARMUP else (STEPS - step) / (STEPS - WARMUP))


def plain_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": biases, "weight_decay": 0.0}]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=PEAK, momentum=0.7)
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.8, 0.99))


def plain_loop(name: str) -> tuple[dict[str, Tensor], list[float], list[Any]]:
    data = source(SAMPLES, VALID)
    inputs, targets = data.train.inputs, data.train.targets
    # every 13 / 5 = 2.6th of the validation samples
    held_out = data.valid.inputs[[0, 2, 5, 7, 10]], data.valid.targets[[0, 2, 5, 7, 10]]
    torch.manual_seed(SEED)
    model = Net()
    optimizer = plain_optimizer(name, model)
    losses, norms, validations = [], [], []
    for step, batch in enumerate(plain_batches(), 1):
        for group in optimizer.param_groups:
            group["lr"] = plain_learning_rate(step)
        loss = F.cross_entropy(model(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
        if step in (5, 10):
            with torch.no_grad():
                validations.append((step, 5, F.cross_entropy(model(held_out[0]), held_out[1]).item()))
    assert min(norms) < CLIP < max(norms), "some steps are clipped, and some are not"
    return {name: value.clone() for name, value in model.state_dict().items()}, losses, validations


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_ten_steps_are_those_of_a_plain_pytorch_loop(request, tmp_path: Path, name: str, ranks: int) -> None:
    expected, losses, validations = plain_loop(name)
    made = config(name, ranks)
    if ranks == 1:
        results = [trained(alone(), made, tmp_path)]
    else:
        results = request.getfixturevalue("two_ranks").call(trained, made, tmp_path)
    for parameters, *_ in results:
        assert_close(parameters, expected, sums=STEPS)
    _, found_losses, found_validations = results[0]
    assert found_losses == approx_losses(losses)
    assert [each[:2] for each in found_validations] == [each[:2] for each in validations]
    assert [each[2] for each in found_validations] == pytest.approx(
        [each[2] for each in validations], rel=tolerance(STEPS)
    )
