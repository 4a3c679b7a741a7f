"""Batch norm over the samples of all ranks, with timed communication; PyTorch has none for the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as autograd_collectives
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from disttrain.runtime.fully_shard_hooks import ObservedGroup


class NormGroup(ObservedGroup):
    """The process group of a batch norm; a `silent` one has one rank, so that the norm exchanges nothing."""

    silent = False

    def size(self) -> int:
        return 1 if self.silent else int(self.group.size())


class CPUSyncBatchNorm(_BatchNorm):
    """`SyncBatchNorm` on the CPU, for inputs of shape (batch, channels, ...): an all-reduce for the mean, one
    for the variance, and autograd's two in the backward pass. Ranks may have unequal numbers of values."""

    process_group: Any

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"batch norm needs inputs (batch, channels, ...), not shape {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or dist.get_world_size(self.process_group) == 1:
            return super().forward(input)
        self._check_input_dim(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        axes, shape = [axis for axis in range(x.dim()) if axis != 1], [-1, *[1] * (x.dim() - 2)]
        totals = self._sum(torch.cat([x.sum(axes), x.new_tensor([x.numel() / x.shape[1]])]))
        count = totals[-1].detach()
        mean = totals[:-1] / count
        centred = x - mean.view(shape)
        variance = self._sum(centred.square().sum(axes)) / count
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        self._update_running_stats(mean, variance * count / (count - 1).clamp(min=1))
        return output.to(input.dtype)

    def _sum(self, tensor: Tensor) -> Tensor:
        total: Tensor = autograd_collectives.all_reduce(tensor, group=self.process_group)
        return total

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


def synchronize_batch_norms(model: nn.Module, device: torch.device) -> None:
    """Have each batch norm of `model` compute over all ranks; its parameters, buffers and names stay."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = CPUSyncBatchNorm if device.type == "cpu" else nn.SyncBatchNorm
            vars(module)["process_group"] = None


def norm_groups(model: nn.Module) -> list[NormGroup]:
    """A `NormGroup` for each synchronised batch norm of `model`, also of one that a script has converted."""
    groups = []
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm | CPUSyncBatchNorm):
            module.process_group = NormGroup(module.process_group or dist.group.WORLD)
            groups.append(module.process_group)
    return groups
