"""The interface of a hook: an object that the training loop calls between steps."""

from __future__ import annotations

from disttrain.records.exit_causes import StopCause
from disttrain.telemetry.step_result import StepResult


class Hook:
    """Every rank calls the same hooks in the same order, so a hook may communicate."""

    def on_start(self, step: int) -> StopCause | None:
        """Called once before the first step, after `step` steps of earlier attempts. A cause ends the run."""
        return None

    def on_step(self, result: StepResult) -> StopCause | None:
        """Called after each step. A cause ends the run; the hooks that follow are not called."""
        return None

    def on_end(self) -> None:
        """Called after the last step of a run that no cause ended."""
