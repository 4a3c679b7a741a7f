"""Telemetry as the first hook: closes each step on the clock."""

from __future__ import annotations

from disttrain.hooks.base import Hook
from disttrain.step_result import StepResult
from disttrain.telemetry.run import RunTelemetry


class TelemetryHook(Hook):
    """Starts a `RunTelemetry` and gives it every step."""

    def __init__(self, telemetry: RunTelemetry) -> None:
        self._telemetry = telemetry

    def on_start(self, step: int) -> None:
        self._telemetry.start()

    def on_step(self, result: StepResult) -> None:
        self._telemetry.step_done(result)
