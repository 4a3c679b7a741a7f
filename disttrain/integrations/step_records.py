"""Step records of a framework's trainer, whose callback calls these methods."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from disttrain.errors import ConfigError
from disttrain.runtime.torch_version import require_torch

_missing: Exception | None = None
INPUT = OTHER = 0
try:  # an environment of the user may lack packages, or have an older torch
    require_torch()
    from disttrain.engine.own_loop import LoopTelemetry
    from disttrain.telemetry.step_clock import INPUT, OTHER
except (ConfigError, ImportError) as error:
    _missing = error


class StepRecords:
    """Records nothing, after one line with the reason, where `LoopTelemetry` cannot measure the trainer."""

    def __init__(self) -> None:
        self._telemetry: LoopTelemetry | None = None
        self._outside = ExitStack()
        self._left_at: float | None = None
        """When the validation or the save under way began."""
        self.begun = False

    def begin(self, model: Any, optimizer: Any, *, steps: float, **numbers: Any) -> None:
        """Collective: the first step begins now. Arguments as for `LoopTelemetry`."""
        self.begun = True
        try:
            if _missing:
                raise ConfigError(str(_missing))
            if not math.isfinite(steps):
                raise ConfigError("the trainer has no last step")
            telemetry = LoopTelemetry(None, model, optimizer, steps=int(steps), **numbers)
        except ConfigError as problem:
            if os.environ.get("RANK", "0") == "0":
                print(f"disttrain: the steps are not recorded: {problem}", file=sys.stderr)
        else:
            self._telemetry = telemetry.__enter__()

    def step_done(self, loss: Any = None) -> None:
        """An optimizer step has ended. `loss`: the mean of this rank's samples, a scalar tensor."""
        if self._telemetry:
            if loss is not None:
                self._telemetry.record_loss(loss)
            self._telemetry.step()
            self.await_batch()

    def await_batch(self) -> None:
        """The trainer fetches a batch; a validation or a save that was under way has ended."""
        self._return_to(INPUT)

    def batch_arrived(self) -> None:
        self._return_to(OTHER)

    def _return_to(self, phase: int) -> None:
        self._outside.close()
        self._left_at = None
        if self._telemetry:
            self._telemetry.clock.switch(phase)

    def leave_steps(self) -> None:
        """A validation or a save is under way, whose time belongs to no step."""
        if self._telemetry and self._left_at is None:
            self._left_at = time.monotonic()
            self._outside.enter_context(self._telemetry.outside_steps())

    def validated(self, loss: float | None, metrics: Mapping[str, float]) -> None:
        """Record the validation that is under way after the newest step."""
        if self._telemetry and self._left_at is not None:
            self._telemetry.record_validation(loss, metrics, time.monotonic() - self._left_at)

    def close(self, error: BaseException | None = None) -> None:
        """Collective without an `error`: the training has ended."""
        self._outside.close()
        if self._telemetry:
            self._telemetry.__exit__(type(error) if error else None, error, None)
        self._telemetry = None
