"""The result of one optimizer step, as the trainer returns it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from disttrain.telemetry.step_clock import COMPUTE, ClockedStep, StepMarks


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
    marks: StepMarks | None = field(default=None, repr=False)
    """The step on the clock."""

    @property
    def step_s(self) -> float | None:
        """Seconds of the step; None until the trainer has closed it, as for the others."""
        return sum(step.phases) if (step := self._clocked()) else None

    @property
    def compute_s(self) -> float | None:
        """Seconds of compute."""
        return step.phases[COMPUTE] if (step := self._clocked()) else None

    @property
    def comm_s(self) -> float | None:
        """Seconds of exposed communication; None also where some was not timed."""
        return step.exposed_s if (step := self._clocked()) and not self.comm_reason else None

    def _clocked(self) -> ClockedStep | None:
        return self.marks.read() if self.marks is not None and self.marks.is_closed else None
