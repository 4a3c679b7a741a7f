"""The interface of a scheme, and its construction by name.

Error feedback: the part of a gradient that a lossy scheme did not send is added to the next gradient. Seide
et al. 2014 (1-bit SGD); Karimireddy et al. 2019, arXiv 1901.09847. A mean that is not finite leaves the
errors as they were, because its step is skipped.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from disttrain.config.sections.parallel import GradientCommunicationConfig
from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.runtime.plug_ins import load_plug_in
from disttrain.runtime.process_group import World

State = dict[str, Tensor]
"""Tensors by name."""
_ERROR = "error."


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
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


class Scheme:
    """Averages gradients over the ranks of `group`. All ranks call it in the same order of buckets."""

    average_every = 0
    """Steps between averages of the parameters, where gradients stay on their rank."""
    compares_collectives = True
    """Whether all ranks take part in the same collectives."""

    def __init__(self, group: CountedGroup, error_feedback: bool = False) -> None:
        self.group = group
        self.error_feedback = error_feedback
        self._flat_errors: dict[tuple[str, ...], Tensor] = {}
        self._errors: State = {}
        """By parameter, so that they fit any division of the parameters into buckets."""

    def average(self, gradient: FlatGradient, step: int) -> None:
        """Overwrite `gradient.values` with the average over ranks, in optimizer step `step` (from 1); here
        uncompressed."""
        self.group.mean(gradient.values)

    def error_of(self, gradient: FlatGradient) -> Tensor:
        """The error of a bucket, laid out as its values, which the caller updates in place; zero at first."""
        names = tuple(gradient.shapes)
        if names not in self._flat_errors:
            self._flat_errors[names] = torch.zeros_like(gradient.values)
            parts = gradient.split(self._flat_errors[names])
            for name in parts.keys() & self._errors.keys():
                parts[name].copy_(self._errors[name])
            self._errors |= parts
        return self._flat_errors[names]

    def state_dict(self) -> State:
        """What a resumed run needs of this rank; may share memory with the live state."""
        return {_ERROR + name: error for name, error in self._errors.items()}

    def load_state_dict(self, state: State) -> None:
        """Take up a result of `state_dict`; of an empty one, start anew."""
        self._flat_errors.clear()
        self._errors = by_prefix(state, _ERROR)


def by_prefix(state: State, prefix: str) -> State:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def keep_if_finite(error: Tensor, left_over: Tensor, mean: Tensor) -> None:
    """Overwrite `error` with `left_over` if all of `mean` is finite: equal on all ranks, as the mean is."""
    torch.where(mean.isfinite().all(), left_over, error, out=error)


def seeded(seed: tuple[int, int]) -> torch.Generator:
    """A generator of equal numbers on all ranks."""
    return torch.Generator().manual_seed(seed[0] * 1_000_003 + seed[1])


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host tensor on `device`, for which the host does not wait; on the CPU the tensor itself."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def build_scheme(options: GradientCommunicationConfig, world: World) -> Scheme:
    """The scheme that the config names, in a group of its own. Collective: all ranks call it."""
    return build_by_name(options.scheme, CountedGroup.beside_training(world), options)


def build_by_name(
    scheme: str, group: CountedGroup, options: GradientCommunicationConfig | Mapping[str, Any]
) -> Scheme:
    """The scheme of a file of this folder, or of `package.module:name`. Raises `ConfigError`."""
    build = _builder(scheme)
    keywords = _keywords(build, options) if isinstance(options, GradientCommunicationConfig) else options
    built: Scheme = build(group, **keywords)
    return built


def state_bytes(options: GradientCommunicationConfig, parameters: Iterable[Tensor]) -> int:
    """Bytes that the scheme keeps on a rank from step to step, by `state_bytes` of its module."""
    module = sys.modules[_builder(options.scheme).__module__]
    count: Callable[..., int] | None = getattr(module, "state_bytes", None)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return count(trained, **_keywords(count, options)) if count else 0


def _builder(scheme: str) -> Callable[..., Any]:
    return load_plug_in("parallel.gradient_communication.scheme", str(__package__), scheme)


def _keywords(function: Callable[..., Any], options: GradientCommunicationConfig) -> dict[str, Any]:
    """The options that `function` has arguments for; of a scheme from outside, those in `options`."""
    if ":" in options.scheme:
        return options.options
    names = inspect.signature(function).parameters.keys() & type(options).model_fields.keys()
    return {name: getattr(options, name) for name in names}
