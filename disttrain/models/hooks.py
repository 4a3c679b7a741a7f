"""What the trainer looks up on a model: optional methods (`ModelHooks`), and its blocks.

A model mixes `ModelHooks` into its `nn.Module` and overrides what it needs. The trainer, the optimizer and
the telemetry look the hooks up on the unwrapped model (`hooks_of`), so that they import no particular model.
Blocks are the repeated layers that are sharded, checkpointed and compiled one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

Item = TypeVar("Item")


class ModelHooks:
    """The hooks of a model, no-op by default."""

    has_real_gradients = True
    """Whether gradients hold values, of which a norm can be taken."""

    def on_step(self, step: int) -> None:
        """Called before the passes of optimizer step `step` (1 is the first)."""

    def uncounted(self) -> AbstractContextManager[None]:
        """Context of passes that belong to no step."""
        return nullcontext()

    def make_optimizer(self) -> torch.optim.Optimizer | None:
        """An optimizer that replaces the one of the config section `optim`; None keeps that."""
        return None

    def wrap_batches(self, batches: Iterator[Item], samples: int, device: torch.device) -> Iterator[Item]:
        """The micro-batches of `samples` each that the trainer reads, in the same order."""
        return batches

    def report(self) -> Mapping[str, float | str]:
        """Fields of `Metrics` that the model measured on this rank, or the reason why one is null.

        The largest value over ranks is recorded. All ranks return the same fields.
        """
        return {}

    def model_section(self) -> Mapping[str, Any]:
        """The config section `model` of a model that no config built; empty: its class is its kind."""
        return {}


def hooks_of(model: nn.Module) -> ModelHooks:
    """The hooks of `model` or of the first of its submodules that has some; no-op hooks if none has."""
    return next((module for module in model.modules() if isinstance(module, ModelHooks)), ModelHooks())


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of `model` by their name in it, in the order of the forward pass.

    The blocks are the members of `model.blocks`; without this attribute, the members of the longest
    `nn.ModuleList` whose members have parameters (the layers of a Hugging Face model); without such a list,
    the children of `model` that have parameters.
    """
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and all(map(_has_parameters, module))
    }
    name = max(lists, key=lambda name: len(lists[name]), default="")
    if isinstance(getattr(model, "blocks", None), nn.Module):
        name = "blocks"
    children = model.get_submodule(name).named_children()
    return {f"{name}.{key}".lstrip("."): child for key, child in children if _has_parameters(child)}


def mix_in(module: nn.Module, mixin: type[nn.Module]) -> None:
    """Put `mixin` before the class of `module`, as `fully_shard` does: modules and parameters keep their
    names."""
    kind = type(module)
    mixed = type(kind.__name__, (mixin, kind), {"__module__": kind.__module__})
    module.__class__ = _MIXED.setdefault((mixin, kind), mixed)


_MIXED: dict[tuple[type, type], type[nn.Module]] = {}
"""Classes by mixin and class; with one class, equal blocks are compiled once."""


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
