"""The optimizer over the parameters that the strategy assigns to this rank."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _NormBase

from disttrain.config.schedules import learning_rate
from disttrain.config.sections.optim import OptimConfig
from disttrain.errors import ConfigError
from disttrain.models.hooks import hooks_of
from disttrain.runtime.plug_ins import load_plug_in

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)


def build_optimizer(
    parameters: Iterable[nn.Parameter], optim: OptimConfig, model: nn.Module | None = None
) -> torch.optim.Optimizer:
    """The optimizer over those of `parameters` that are trained; one of the unwrapped `model`'s own replaces
    it.

    Weight decay applies to matrices, kernels and embeddings: tensors of two or more dimensions (of the whole
    tensor, where a rank holds a shard), unless a norm of `model` owns them.
    """
    if model is not None and (own := hooks_of(model).make_optimizer()) is not None:
        return own
    norms = [module for module in (model.modules() if model else ()) if isinstance(module, _NORMS)]
    of_norms = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    trainable = [p for p in parameters if p.requires_grad]
    parts: dict[float, list[nn.Parameter]] = {optim.weight_decay: [], 0.0: []}
    for parameter in trainable:
        decays = parameter.dim() >= 2 and id(parameter) not in of_norms
        parts[optim.weight_decay if decays else 0.0].append(parameter)
    groups = [{"params": part, "weight_decay": decay} for decay, part in parts.items() if part]
    # torch has fused kernels for both optimizers on both devices, but not of SGD for sharded parameters
    sharded = any(isinstance(parameter, DTensor) for parameter in trainable)
    fused = not (sharded and optim.name == "sgd") if optim.fused is None else optim.fused
    if optim.name == "sgd":
        sgd = torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, fused=fused)
        if fused and optim.momentum:
            # torch allocates a fused optimizer's momentum at the first step, and leaves it uninitialised if
            # that step is skipped
            for parameter in trainable:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, fused=fused)


def learning_rates(optim: OptimConfig, steps: int, global_batch: int) -> array[float]:
    """The learning rate of each step, a million in one second, so that a step only reads one.

    Raises `ConfigError` if `optim.schedule` is neither built in nor a callable.
    """
    foreign = load_plug_in("optim.schedule", "", optim.schedule) if ":" in optim.schedule else None
    rates = (learning_rate(step, steps, optim, global_batch, foreign) for step in range(1, steps + 1))
    return array("d", rates)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of every parameter group, times its `lr_scale` where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("lr_scale", 1.0)


def set_lr_scales(optimizer: torch.optim.Optimizer) -> float:
    """Set the `lr_scale` of each parameter group to its learning rate relative to that of the first group,
    which is returned."""
    peak = float(optimizer.param_groups[0]["lr"])
    if not peak > 0:
        raise ConfigError(f"optimizer: the first parameter group has lr={peak}; must be positive")
    for group in optimizer.param_groups:
        group["lr_scale"] = float(group["lr"]) / peak
    return peak
