"""The memory estimate against the peak that CUDA's allocator reports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from disttrain.config.config_tree import Config
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.memory_estimate import estimate
from disttrain.engine.objective import Task
from disttrain.engine.train import batches_of, begin, run
from disttrain.optim.optimizer import build_optimizer
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.transforms import transforms_of
from tests.support.stopping import config as run_config
from tests.support.stopping import train_until

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

WORKSPACE = 96 << 20
"""Bytes that cuBLAS may hold for its workspace."""


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_the_estimate_is_within_a_tenth_of_the_measured_peak(mode: str) -> None:
    config = Config.model_validate(
        {
            "model": {"kind": "gpt", "layers": 8, "width": 1024, "heads": 16},
            "data": {"kind": "synthetic", "task": "language", "vocab": 8192, "seq_len": 512},
            "train": {"steps": 1, "local_batch_size": 16},
            "memory": {"activation_checkpointing": mode},
        }
    )
    device = torch.device("cuda")
    source = build_source(config.data)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    model = build_model(config.model, source).to(device)
    for transform in transforms_of(config, device):
        model = transform(model)
    optimizer = build_optimizer(model.parameters(), config.optim)
    batch = tuple(value.expand(16, *value.shape).contiguous().to(device) for value in source.train[0])
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        Task.of(source).batch_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = torch.cuda.max_memory_allocated() - before
    assert estimate(config).total_bytes == pytest.approx(measured, rel=0.1, abs=WORKSPACE)


def test_offloaded_shards_leave_the_gpu_and_train_alike(tmp_path: Path) -> None:
    """The losses differ by the rounding of the CPU's optimizer."""
    device = torch.device("cuda", 0)
    world = World(rank=0, size=1, local_rank=0, local_size=1, device=device, backend=None)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    held, losses = [], []
    try:
        for offload in (False, True):
            made = run_config(
                model={"kind": "gpt", "layers": 4, "width": 512, "heads": 8},
                data={"kind": "synthetic", "task": "language", "vocab": 8192, "seq_len": 128, "samples": 64},
                train={"steps": 6, "local_batch_size": 4, "global_batch_size": 8, "log_every": 1},
                precision={"dtype": "fp16"},
                parallel={"strategy": "fsdp", "fsdp": {"cpu_offload": offload}},
                resources={"device": "cuda"},
            )
            folder = tmp_path / str(offload)
            train_until(world, made, folder, 0, 3)
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            trainer = begin(made, RunOutput.of_job(folder, 1), world)  # resumes after step 3
            held.append(torch.cuda.memory_allocated() - before)
            with trainer:
                run(trainer, batches_of(trainer))
            metrics = trainer.metrics()
            assert metrics.resumed_step == 3
            losses.append([point.loss for point in metrics.loss_history])
            state = sum(parameter.nbytes for parameter in trainer.stepper.model.parameters())
            del trainer
    finally:
        dist.destroy_process_group()
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert held[0] - held[1] > 0.9 * 3 * state, "weights and both moments"


def test_offload_and_chunks_lower_the_peak_and_keep_the_loss() -> None:
    peaks, losses = [], []
    for memory in ({}, {"offload_activations": True}, {"loss_chunk_tokens": 512}):
        config = Config.model_validate(
            {
                "model": {"kind": "gpt", "layers": 4, "width": 512, "heads": 8},
                "data": {
                    "kind": "synthetic",
                    "task": "language",
                    "vocab": 8192,
                    "seq_len": 512,
                    "samples": 8,
                },
                "train": {"steps": 1, "local_batch_size": 8},
                "memory": memory,
            }
        )
        device = torch.device("cuda")
        source = build_source(config.data)
        torch.manual_seed(0)
        model = build_model(config.model, source).to(device)
        for transform in transforms_of(config, device):
            model = transform(model)
        batch = tuple(value.expand(8, *value.shape).contiguous().to(device) for value in source.train[0])
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss = Task.of(source, config.memory.loss_in_model).batch_loss(model, batch)
        loss.backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        losses.append(loss.item())
        del model, loss, batch
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)
    assert max(peaks[1:]) < 0.9 * peaks[0]
