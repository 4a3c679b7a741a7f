"""Telemetry as the first hook: closes each step on the clock."""

from __future__ import annotations

from disttrain.engine.hook import Hook
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.step_result import StepResult


class TelemetryHook(Hook):
    """Starts a `RunTelemetry` and gives it every step."""

    def __init__(self, telemetry: RunTelemetry) -> None:
        self._telemetry = telemetry

    def on_start(self, step: int) -> None:
        self._telemetry.start()

    def on_step(self, result: StepResult) -> None:
        self._telemetry.step_done(result)
