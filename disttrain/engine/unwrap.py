"""The model and the optimizer below the wrappers of Accelerate, Fabric and Lightning."""

from __future__ import annotations

import torch
from torch import nn

from disttrain.errors import ConfigError


def unwrap_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer whose `step` updates the parameters.

    `AcceleratedOptimizer`, Fabric's and Lightning's wrappers have it as `optimizer`. Raises `ConfigError` for
    an object that runs no step hooks of torch.
    """
    inner: object = optimizer
    while isinstance(below := getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = below
    if isinstance(inner, torch.optim.Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
        return inner
    raise ConfigError(
        f"optimizer={type(optimizer).__name__}: must be a torch.optim.Optimizer, or have one as its "
        "attribute `optimizer`; give the optimizer that it wraps"
    )


def unwrap_model(model: object) -> nn.Module:
    """The module that all ranks train: DDP, sharded by `fully_shard`, or plain on one rank.

    Fabric's module has it as `_forward_module`; the trainer of a `LightningModule` has it as `model`. Raises
    `ConfigError` for an object that is no module.
    """
    inner = getattr(model, "_forward_module", model)
    inner = getattr(getattr(inner, "_trainer", None), "model", None) or inner
    if isinstance(inner, nn.Module):
        return inner
    raise ConfigError(
        f"model={type(model).__name__}: must be a torch.nn.Module; give the module that it wraps"
    )
