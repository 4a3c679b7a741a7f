"""A strategy of another package: gradients are averaged after the last micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from disttrain.parallel.base import Strategy
from disttrain.parallel.schemes.counted_group import CountedGroup


class AverageAtTheEnd(Strategy):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @contextmanager
    def micro_step(self, model: nn.Module, last: bool) -> Iterator[None]:
        yield
        if last:
            gradients = [p.grad.mul_(self.factor) for p in model.parameters() if p.grad is not None]
            CountedGroup().average(gradients)


def build(factor: float = 1.0) -> AverageAtTheEnd:
    return AverageAtTheEnd(factor)
