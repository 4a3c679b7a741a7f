"""The interface of a gradient communication scheme, and its construction by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.counted_group import CountedGroup
from disttrain.runtime.process_group import World

State = dict[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class FlatGradient:
    """Gradients of parameters, one after the other in one tensor: a bucket of DDP."""

    values: Tensor
    """One dimension; a scheme overwrites it with the average over ranks."""
    shapes: Mapping[str, torch.Size]
    """Shape of each parameter by its name, in the order of `values`."""
    index: int = 0
    """Position among the buckets of a step."""

    def split(self, flat: Tensor) -> State:
        """Views of `flat`, which is laid out as `values`, by parameter."""
        return split_flat(flat, self.shapes)


def split_flat(flat: Tensor, shapes: Mapping[str, torch.Size]) -> State:
    """Views of `flat`, one after the other, in the given shapes."""
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host tensor on `device`, for which the host does not wait; on the CPU the tensor itself."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Scheme:
    """Averages gradients over the ranks of `group`. All ranks call it in the same order of buckets."""

    def __init__(self, group: CountedGroup) -> None:
        self.group = group

    def average(self, gradient: FlatGradient, step: int) -> None:
        """Overwrite `gradient.values` with the average over ranks, in optimizer step `step` (from 1)."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """What a resumed run needs of this rank; may share memory with the live state."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take up a result of `state_dict`; of an empty one, start anew."""


def build_scheme(options: GradientCommunicationConfig, world: World) -> Scheme:
    """The scheme of module `disttrain.parallel.gradient_communication.<scheme>`. All ranks together."""
    module = importlib.import_module(f"disttrain.parallel.gradient_communication.{options.scheme}")
    built: Scheme = module.build(options, world)
    return built
