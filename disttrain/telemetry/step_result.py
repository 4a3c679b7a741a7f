"""The result of one optimizer step, as the trainer returns it and the hooks receive it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from disttrain.telemetry.step_clock import COMPUTE, ClosedStep


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step on this rank. Tensors are scalars that stay on the device: reading one, or a number
    of seconds, waits for it."""

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
    comm_reason: str | None = None
    """Reason why some communication of the step was not timed; None if all was."""
    extra: dict[str, Tensor | float] = field(default_factory=dict)
    """Further values of the step by name: in its record, the log line and the sinks."""
    closed: ClosedStep | None = field(default=None, repr=False)
    """The step on the clock, once it is closed."""

    @property
    def step_s(self) -> float | None:
        """Seconds of the step; None until it is closed, as for the others."""
        return None if self.closed is None else sum(self.closed.read().phases)

    @property
    def compute_s(self) -> float | None:
        """Seconds of compute."""
        return None if self.closed is None else self.closed.read().phases[COMPUTE]

    @property
    def comm_s(self) -> float | None:
        """Seconds of exposed communication; None also where some was not timed."""
        return None if self.closed is None or self.comm_reason else self.closed.read().exposed_s
