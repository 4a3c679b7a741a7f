"""One of each kind that a config names, from outside of the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from disttrain.config.sections.optim import OptimConfig
from disttrain.hardware.fields import Field
from disttrain.parallel.base import Strategy
from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme
from disttrain.records.run_directory import Attempt


class OneToZero(Dataset[tuple[Tensor, Tensor]]):
    """Data source: input 1, target 0."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.ones(1), torch.zeros(1)


class Times(nn.Module):
    """Model: the input times one weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight * inputs


def doubled(model: nn.Module) -> nn.Module:
    """Transform."""
    model.register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def plus_three(model: nn.Module) -> nn.Module:
    """Transform."""
    model.register_forward_hook(lambda module, inputs, output: output + 3)
    return model


def harmonic(step: int, steps: int, optim: OptimConfig) -> float:
    """Learning-rate schedule."""
    return optim.step_factor / step


class AverageAtTheEnd(Strategy):
    """Averages the gradients after the last micro-batch, times `factor`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @contextmanager
    def micro_step(self, model: nn.Module, last: bool) -> Iterator[None]:
        yield
        if last:
            gradients = [p.grad.mul_(self.factor) for p in model.parameters() if p.grad is not None]
            CountedGroup().average(gradients)


class Scaled(Scheme):
    """Gradient scheme: the average over ranks, times `factor`."""

    def __init__(self, group: CountedGroup, factor: float) -> None:
        super().__init__(group)
        self.factor = factor

    def average(self, gradient: FlatGradient, step: int) -> None:
        super().average(gradient, step)
        gradient.values.mul_(self.factor)


class Lines:
    """Sink: a line for each scalar."""

    def __init__(self, attempt: Attempt) -> None:
        self.file = open(attempt.path / "scalars.csv", "a")  # noqa: SIM115 -- closed by `close`

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.file.writelines(f"{step},{name},{value}\n" for name, value in values.items())

    def close(self) -> None:
        self.file.close()


def _descriptors(psutil: Any, process: Any) -> int:
    return int(process.num_fds())


DESCRIPTORS = Field("process", "descriptors", "", (_descriptors,), {"descriptors_max": "max"})
"""Hardware field."""
