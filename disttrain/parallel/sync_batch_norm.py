"""Batch norm over the samples of all ranks, also on the CPU, for which PyTorch has none.

`torch.nn.SyncBatchNorm` raises on CPU tensors. This module replaces it there: the ranks gather mean, sum of
squared deviations and number of values of each channel in the forward pass, and reduce two sums per channel
in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CommContext = Callable[[], AbstractContextManager[None]]


def synchronize_batch_norms(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` with each batch norm computed over all ranks; its parameters, buffers and names stay.

    On a GPU this is `torch.nn.SyncBatchNorm.convert_sync_batchnorm`.
    """
    if device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if isinstance(model, _BatchNorm):
        return CPUSyncBatchNorm(model)
    made: dict[nn.Module, nn.Module] = {}  # a module may be reached under several names
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                parent._modules[name] = made.setdefault(child, CPUSyncBatchNorm(child))
    return model


class CPUSyncBatchNorm(_BatchNorm):
    """`_BatchNorm` whose statistics in training are those of all ranks' samples.

    Takes inputs of shape (batch, channels, ...). The number of values per channel may differ between ranks.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats, device="meta"
        )
        self._parameters, self._buffers, self.training = norm._parameters, norm._buffers, norm.training
        self.comm_context: CommContext = nullcontext
        self.synchronizes = True
        """Whether statistics are exchanged; without it, this is batch norm over the samples of this rank."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"batch norm needs inputs (batch, channels, ...), not shape {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.synchronizes and dist.get_world_size() > 1):
            return super().forward(input)
        self._check_input_dim(input)
        output, mean, variance, count = _Normalize.apply(
            input, self.weight, self.bias, self.eps, self.comm_context
        )
        self._update_running_stats(mean, variance * count / (count - 1).clamp(min=1))
        return output

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


class _Normalize(torch.autograd.Function):
    """(input, weight, bias) to (output, mean, biased variance, number of values), over all ranks."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, context: CommContext
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        axes = [axis for axis in range(x.dim()) if axis != 1]
        own_mean = x.mean(axes)
        own_squares = (x - _by_channel(own_mean, x)).square().sum(axes)
        own_count = torch.full_like(own_mean[:1], x.numel() / x.shape[1])
        with context():
            rows = _gathered(torch.cat([own_mean, own_squares, own_count]))
        means, squares, counts = rows.split([x.shape[1], x.shape[1], 1], dim=1)
        count = counts.sum()
        mean = (means * counts).sum(0) / count
        # squared deviations from the joint mean (Chan et al. 1983), free of cancellation
        variance = (squares + counts * (means - mean).square()).sum(0) / count
        scale = torch.rsqrt(variance + eps)
        normalized = (x - _by_channel(mean, x)) * _by_channel(scale, x)
        ctx.save_for_backward(normalized, weight, scale, count)
        ctx.context, ctx.axes = context, axes
        ctx.mark_non_differentiable(mean, variance, count)
        output = normalized if weight is None else normalized * _by_channel(weight, x)
        output = output if bias is None else output + _by_channel(bias, x)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normalized, weight, scale, count = ctx.saved_tensors
        grad = gradients[0].to(normalized.dtype)
        sums = torch.stack([grad.sum(ctx.axes), (grad * normalized).sum(ctx.axes)])
        grad_bias, grad_weight = sums.clone() if weight is not None else (None, None)
        with ctx.context():
            dist.all_reduce(sums)
        both = [_by_channel(each / count, grad) for each in sums]
        factor = scale if weight is None else scale * weight
        grad_input = (grad - both[0] - normalized * both[1]) * _by_channel(factor, grad)
        return grad_input.to(gradients[0].dtype), grad_weight, grad_bias, None, None


def _gathered(row: Tensor) -> Tensor:
    """The `row` of every rank, by rank."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    """`values` of shape (channels) in a shape that broadcasts over `like`."""
    return values.view(-1, *[1] * (like.dim() - 2))
