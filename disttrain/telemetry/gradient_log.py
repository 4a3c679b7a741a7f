"""Gradient norms of the steps, and the steps that were skipped because a norm was not finite."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from disttrain.records.metrics import GradNormPoint
from disttrain.runtime import log
from disttrain.telemetry.step_series import StepSeries


@dataclass
class SkippedSteps:
    """Steps whose update was skipped; the same on all ranks."""

    total: int = 0
    """Over the whole run, earlier attempts included."""
    of_attempt: int = 0
    """In this attempt."""
    in_a_row: int = 0
    """Up to the newest step."""
    last: int = 0
    """The newest skipped step; 0: none."""


@dataclass
class GradientLog:
    """Gradient norms and skipped steps, in order of the steps."""

    norms: StepSeries = field(default_factory=StepSeries)
    skipped: SkippedSteps = field(default_factory=SkippedSteps)

    def add(self, step: int, norm: float | None, skipped: bool) -> None:
        """Add a step; a step without a norm is no point of the curve."""
        if norm is not None:
            self.norms.add(step, norm)
        if not skipped:
            self.skipped.in_a_row = 0
            return
        self.skipped.total += 1
        self.skipped.of_attempt += 1
        self.skipped.in_a_row += 1
        self.skipped.last = step
        log.info("update skipped", step=step, grad_norm=norm, in_a_row=self.skipped.in_a_row)

    def points(self) -> list[GradNormPoint]:
        """The curve, thinned to at most 1,000 points."""
        return [GradNormPoint(step=step, grad_norm=norm) for step, norm in self.norms.thinned()]

    def tensors(self) -> dict[str, Tensor]:
        """The state for a checkpoint."""
        steps, norms = self.norms.tensors()
        return {
            "grad_norm_steps": steps,
            "grad_norms": norms,
            "skipped_steps": torch.tensor(self.skipped.total),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from the result of `tensors`; checkpoints of earlier versions have none."""
        if "grad_norms" in state:
            self.norms.extend(state["grad_norm_steps"], state["grad_norms"])
            self.skipped.total = int(state["skipped_steps"].item())
