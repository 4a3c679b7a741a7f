"""The optimizer, and the learning rate at every step as one closed formula."""

from __future__ import annotations

import math

import torch
from torch import nn

from disttrain.config.sections import OptimConfig
from disttrain.emulation.model import Emulated


def make_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer over `model`'s trainable parameters.

    Weight decay applies to tensors of two or more dimensions: matrices, kernels and embeddings, not
    biases and norms. An emulated model whose table says what its optimizer takes brings its own.
    """
    if isinstance(model, Emulated) and (emulated := model.optimizer()) is not None:
        return emulated
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # torch has fused kernels for both optimizers on both devices, for floating-point parameters
    fused = True if optim.fused is None else optim.fused
    if optim.name == "sgd":
        return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, fused=fused)


def peak_lr(optim: OptimConfig, global_batch: int) -> float:
    """The peak learning rate after the batch-size scaling rule.

    linear: lr * B / B0 (Goyal et al. 2017, arXiv 1706.02677); sqrt: lr * sqrt(B / B0) (Krizhevsky 2014,
    arXiv 1404.5997), with B the global batch and B0 `lr_base_batch`.
    """
    if optim.lr_scaling == "none":
        return optim.lr
    assert optim.lr_base_batch is not None
    ratio = global_batch / optim.lr_base_batch
    return optim.lr * (ratio if optim.lr_scaling == "linear" else math.sqrt(ratio))


def learning_rate(step: int, steps: int, optim: OptimConfig, global_batch: int) -> float:
    """The learning rate of optimizer step `step` (1 is the first) of `steps`.

    Warm-up is linear and reaches the peak at step `warmup_steps`. Then, with t the share of the remaining
    steps that is done: constant 1; linear 1 - (1 - f) t; cosine f + (1 - f)(1 + cos(pi t))/2, f being
    `final_lr_ratio`, reached at the last step; step `step_factor` to the power of drops so far.
    """
    peak = peak_lr(optim, global_batch)
    if step <= optim.warmup_steps:
        return peak * step / optim.warmup_steps
    done = (step - optim.warmup_steps) / max(1, steps - optim.warmup_steps)
    floor = optim.final_lr_ratio
    if optim.schedule == "linear":
        return peak * (1 - (1 - floor) * done)
    if optim.schedule == "cosine":
        return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)
    if optim.schedule == "step":
        assert optim.step_every is not None
        return peak * float(optim.step_factor ** ((step - optim.warmup_steps - 1) // optim.step_every))
    return peak


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value
