"""`torch.nn.DataParallel`: one process, with a replica of the model on each of its GPUs; to compare with ddp.

Each forward pass copies the weights to all GPUs and divides the local batch among them; the gradients are
added up on the first. On the CPU, and with one GPU, the model is left as it is.
"""

from __future__ import annotations

import torch
from torch import nn

from disttrain.config.sections.parallel import ParallelConfig
from disttrain.parallel.base import Strategy
from disttrain.parallel.mesh import Mesh
from disttrain.runtime.process_group import World


class DP(Strategy):
    """One rank with all GPUs that it sees."""

    def apply(self, model: nn.Module, mesh: Mesh, world: World) -> nn.Module:
        gpus = visible_gpus(world)
        return nn.DataParallel(model, device_ids=list(range(gpus))) if gpus > 1 else model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, nn.DataParallel) else model


def visible_gpus(world: World) -> int:
    """Number of GPUs that this process sees; 0 where it computes on the CPU."""
    return torch.cuda.device_count() if world.device.type == "cuda" else 0


def dp_reason(world: World) -> str:
    """What dp is on this machine."""
    gpus = visible_gpus(world)
    if gpus > 1:
        return f"asked for: DataParallel over {gpus} GPUs"
    where = "with one GPU" if gpus else "on the CPU"
    return f"asked for, but dp is single {where}: there are no GPUs to divide the batch among"


def build(config: ParallelConfig) -> DP:
    return DP()
