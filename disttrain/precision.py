"""Numerical precision of a training step: what computes in which type, and how gradients are scaled.

Parameters, activations and gradients are of the types that the model was built with (float32 for the built-in
models). A lower precision overrides these methods: an autocast context, a scaled loss, a step that is skipped
when a gradient is not finite, and the state of its loss scale.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class Precision:
    """The precision of the model's own parameters."""

    def autocast(self) -> AbstractContextManager[None]:
        """Context of every forward pass, in training and validation."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of `loss`, a scalar."""
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the parameters; True if the update was skipped because a gradient is not finite."""
        optimizer.step()
        return False

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs, named from `precision.` on."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up the state of a checkpoint."""
