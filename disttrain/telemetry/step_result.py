"""The result of one optimizer step, as the trainer returns it and the hooks receive it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step on this rank. Tensors are scalars that stay on the device: reading one waits for
    it."""

    step: int
    """1 is the first step of the run."""
    loss: Tensor
    """Mean loss over this rank's samples."""
    lr: float
    """Learning rate of the step."""
    grad_norm: Tensor | None = None
    """Gradient norm of the global batch before clipping; None where neither clipping nor the check for
    non-finite gradients needs it."""
    skipped: Tensor | None = None
    """Whether the optimizer left the parameters unchanged because the gradient norm was not finite; None
    without that check."""
    exposed_comm_reason: str | None = None
    """Reason why some communication of the step was not timed; None if all was."""
    extra: dict[str, Tensor | float] = field(default_factory=dict)
    """Further values of the step by name."""
