"""Heartbeats of a script that has a `Trainer` or a `LoopTelemetry`, if its run has a limit for a step.

No limit suits the longest step, validation and save of every script, so without `job.script_step_timeout_s`
the agent does not watch it. The watch holds from the end of the first step to the end of the last one: the
script may do anything before and after.
"""

from __future__ import annotations

import os
from typing import get_args

from disttrain.records.heartbeat import SCRIPT_TIMEOUT_VARIABLE, Phase
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.telemetry.step_clock import COMMUNICATION, StepClock


class ScriptWatch:
    """Writes the heartbeats of one rank. `steps` is the number of the last step."""

    def __init__(self, rank: int, clock: StepClock, steps: int) -> None:
        limit = os.environ.get(SCRIPT_TIMEOUT_VARIABLE)
        self._limit_s = None if limit is None else float(limit)
        self._rank, self._clock, self._steps = rank, clock, steps
        self._began = False

    def step_done(self, step: int) -> None:
        """Step `step` is done, and the next one begins."""
        if self._limit_s is None:
            return
        if step >= self._steps:
            self.close()
        elif self._began:
            heartbeat.step_done(step)
        else:
            self._began = True
            heartbeat.start(self._rank, dict.fromkeys(get_args(Phase), self._limit_s), step)
            heartbeat.communicates_while(lambda: self._clock.phase in COMMUNICATION)
            heartbeat.enter("step")

    def close(self) -> None:
        """The training has ended: the agent does not watch the rank any more."""
        if self._began:
            heartbeat.stop()
