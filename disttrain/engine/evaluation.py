"""Validation between timed steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset

from disttrain.engine.hook import Hook
from disttrain.engine.step import Stepper
from disttrain.records.metrics import EvalPoint
from disttrain.runtime import heartbeat
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.step_result import StepResult


class EvaluationHook(Hook):
    """Validates on `dataset` after the last step and after every `train.eval_every` steps."""

    def __init__(
        self,
        dataset: Dataset[Any],
        stepper: Stepper,
        telemetry: RunTelemetry,
        listeners: Sequence[Callable[[EvalPoint], None]],
    ) -> None:
        self._dataset = dataset
        self._stepper = stepper
        self._telemetry = telemetry
        self._listeners = listeners

    def on_step(self, result: StepResult) -> None:
        spec = self._stepper.spec
        if not is_due(result.step, spec.steps, spec.config.train.eval_every):
            return
        with heartbeat.within("evaluation"), self._telemetry.outside_steps():
            point = self._stepper.validate(self._dataset, result.step, spec.config.train.eval_samples)
            for listener in self._listeners:
                listener(point)


def is_due(step: int, steps: int, every: int) -> bool:
    """Whether a validation follows `step`."""
    return step == steps or (every > 0 and step % every == 0)
