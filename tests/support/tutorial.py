"""The training loop of a PyTorch tutorial, in which nothing of disttrain is needed."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from disttrain.telemetry.loop import LoopTelemetry

EPOCHS, BATCH, SAMPLES = 4, 8, 256


def train(
    rank: int, size: int, run_dir: str, *, late: int = -1, late_s: float = 0.0, fail_at: int = 0
) -> None:
    """Rank `late` is `late_s` seconds late in each step; every rank fails at step `fail_at`."""
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 20)
    data = TensorDataset(inputs, inputs[:, :5].argmax(1))
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    if size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, step = EPOCHS * len(loader), 0
    settings = {"warmup_steps": 4, "samples": 1, "sinks": []}
    with LoopTelemetry(
        run_dir, model, optimizer, steps=steps, samples_per_step=BATCH, telemetry=settings
    ) as telemetry:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            model.train()
            for features, targets in telemetry.steps(loader):
                step += 1
                loss = F.cross_entropy(model(features), targets)
                if rank == late:
                    time.sleep(late_s)
                if step == fail_at:
                    raise RuntimeError("the loop went wrong")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                telemetry.note(loss)
            model.eval()
            with torch.no_grad():
                model(inputs)  # a validation, which belongs to no step
