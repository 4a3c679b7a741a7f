"""`torch.nn.DataParallel`: one process, with a replica of the model on each of its GPUs; to compare with ddp.

Each forward pass copies the weights to all GPUs and divides the local batch among them; the gradients are
added up on the first. The GPUs are `resources.gpus_per_node`. On the CPU, and with one GPU, the model is left
as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from disttrain.config.sections.parallel import ParallelConfig
from disttrain.parallel.base import Mesh, Strategy
from disttrain.runtime.process_group import World


class DP(Strategy):
    """One rank with all GPUs that its job has on the node."""

    def apply(self, model: nn.Module, mesh: Mesh, world: World) -> nn.Module:
        gpus = world.gpus_per_rank
        if gpus == 1:
            return model
        if self.autocast_dtype is not None:
            keep_autocast_dtype(model, world.device.type, self.autocast_dtype)
        return nn.DataParallel(model, device_ids=list(range(gpus)))

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, nn.DataParallel) else model


def keep_autocast_dtype(model: nn.Module, device_type: str, dtype: torch.dtype) -> None:
    """Have each forward pass of `model` under autocast, and of its replicas, use `dtype`.

    The threads of `DataParallel` enable autocast without its dtype, which is float16 in a new thread.
    """

    def set_dtype(*_: Any) -> None:
        if torch.is_autocast_enabled(device_type):
            torch.set_autocast_dtype(device_type, dtype)

    model.register_forward_pre_hook(set_dtype)


def dp_reason(world: World) -> str:
    """The form that dp takes on this machine."""
    if world.gpus_per_rank > 1:
        return f"requested: DataParallel over {world.gpus_per_rank} GPUs"
    if world.device.type == "cuda":
        return "requested, but dp is single with one GPU: resources.gpus_per_node is 1"
    return "requested, but dp is single on the CPU: there are no GPUs to divide the batch among"


def build(config: ParallelConfig) -> DP:
    return DP()
