"""Precision on a real GPU: the loss curve of each dtype, its kernels, and steps skipped without waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.engine.train import batches_of, begin, run
from disttrain.engine.trainer import Trainer
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from tests.support.stopping import config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = torch.device("cuda", 0)
ON_GPU = World(rank=0, size=1, local_rank=0, local_size=1, device=DEVICE, backend=None)
TOLERANCE = {"tf32": 2.0**-9, "bf16": 2.0**-6, "fp16": 2.0**-9}
"""Relative difference of the loss from that of float32."""


def made(dtype: str, **sections: Any) -> Config:
    return config(
        model={"kind": "gpt", "layers": 2, "width": 256, "heads": 4},
        data={"kind": "synthetic", "task": "language", "vocab": 512, "seq_len": 128, "samples": 64},
        train={"steps": 30, "local_batch_size": 16, "log_every": 5},
        resources={"device": "cuda"},
        precision={"dtype": dtype},
        telemetry={"profiled_steps": 0, "gpu_every_s": 0},
        **sections,
    )


def trainer_of(made: Config, folder: Path) -> Trainer[Any]:
    output = RunOutput.of_job(folder, 0)
    output.attempt.path.mkdir(parents=True, exist_ok=True)
    return begin(made, output, ON_GPU)


def train_all(made: Config, folder: Path) -> Metrics:
    with trainer_of(made, folder) as trainer:
        run(trainer, batches_of(trainer))
    return trainer.metrics()


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Metrics:
    """The run in float32."""
    return train_all(made("fp32"), tmp_path_factory.mktemp("fp32"))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_loss_curve_stays_near_that_of_float32(tmp_path, exact, dtype):
    metrics = train_all(made(dtype), tmp_path)
    expected = [point.loss for point in exact.loss_history]
    found = [point.loss for point in metrics.loss_history]
    assert found != expected
    assert found == pytest.approx(expected, rel=TOLERANCE[dtype])
    named = {"tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}[dtype]
    assert metrics.compute_dtypes == {"matmul": named}
    if metrics.peak_flops is not None:
        assert metrics.peak_flops > 2 * exact.peak_flops


def test_auto_is_bf16_on_a_gpu_that_has_it(tmp_path):
    has_bf16 = torch.cuda.get_device_capability(DEVICE) >= (8, 0)
    assert trainer_of(made("auto"), tmp_path).recorder.metrics_fields["precision"] == (
        "bf16" if has_bf16 else "fp32"
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_skipped_step_does_not_wait_for_the_device(tmp_path, dtype):
    trainer = trainer_of(made(dtype), tmp_path)
    stepper, batches = trainer.stepper, batches_of(trainer)
    trainer.recorder.start()
    before = [parameter.detach().clone() for parameter in stepper.model.parameters()]
    torch.cuda.set_sync_debug_mode("error")
    try:
        parameter = next(stepper.model.parameters())
        hook = parameter.register_post_accumulate_grad_hook(lambda p: p.grad.fill_(torch.inf))
        result = stepper.step(1, batches)
        hook.remove()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert result.skipped
    assert all(torch.equal(a, b) for a, b in zip(before, stepper.model.parameters(), strict=True))
    if stepper.precision.loss_scale is not None:
        assert stepper.precision.loss_scale.value.item() == 2.0**15
    assert not stepper.step(2, batches).skipped
