"""Optional methods of a model that takes part in more than its forward pass. Every default does nothing.

A model mixes `ModelHooks` into its `nn.Module` and overrides what it needs. The trainer, the optimizer and
the telemetry look the hooks up on the unwrapped model (`hooks_of`), so that they import no particular model.
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
