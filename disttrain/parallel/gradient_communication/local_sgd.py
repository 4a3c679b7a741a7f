"""Scheme `local_sgd`: every rank updates its own parameters, which are averaged every H steps.

Lin et al. 2018, arXiv 1808.07217 (post-local SGD: `warmup_steps` of plain DDP first). The moments of the
optimizer are averaged, too, as in Yu et al. 2019, arXiv 1905.03817: after each average, all ranks hold the
same state, which a checkpoint on any number of ranks continues. Of n parameters of 4 bytes with m moments
each, a rank hands over 4 n (1 + m) / H bytes a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.base import FlatGradient, Scheme
from disttrain.parallel.gradient_communication.counted_group import CountedGroup, own_group
from disttrain.runtime.process_group import World

CHUNK_BYTES = 25 * 2**20
"""Tensors are averaged together up to this size, which is that of DDP's buckets."""


class LocalSGD(Scheme):
    """Gradients stay on their rank."""

    def average(self, gradient: FlatGradient, step: int) -> None:
        return


def average_tensors(tensors: Sequence[Tensor], group: CountedGroup) -> None:
    """Overwrite each tensor with its mean over ranks, several in one all-reduce."""
    with torch.no_grad():
        for chunk in _chunks(tensors):
            mean = group.mean(torch.cat([each.flatten() for each in chunk]))
            for each, part in zip(chunk, mean.split([each.numel() for each in chunk]), strict=True):
                each.copy_(part.view_as(each))


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in order; those of one chunk have one dtype and, unless alone, at most CHUNK_BYTES."""
    chunk: list[Tensor] = []
    for tensor in tensors:
        size = sum(each.nbytes for each in chunk) + tensor.nbytes
        if chunk and (size > CHUNK_BYTES or tensor.dtype != chunk[0].dtype):
            yield chunk
            chunk = []
        chunk.append(tensor)
    if chunk:
        yield chunk


def build(options: GradientCommunicationConfig, world: World) -> LocalSGD:
    return LocalSGD(own_group(world))
