"""Step-boundary agreement: the ranks decide together whether to stop, and commit and take checkpoints.

Each step costs one comparison (`next_step`). About every `job.stop_check_s` seconds, and where a checkpoint
is due by its step, one small all-reduce gives all ranks the same view: requests to stop, writes in progress,
time. One collective serves stopping and checkpointing, so both are one hook. All ranks act on the same view,
and no rank enters a collective alone.

Where steps are short, the all-reduce runs beside the next step, and the ranks act on its result after that
step: no rank then waits at the agreement for a slower one. A checkpoint that is due by its step, and steps
longer than half of `job.stop_check_s`, have an all-reduce of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.config.config_tree import Config
from disttrain.engine.hook import Hook
from disttrain.engine.non_finite import VIEW, NonFinitePolicy
from disttrain.errors import Superseded
from disttrain.records.exit_causes import StopCause
from disttrain.records.metrics import EvalPoint
from disttrain.records.shared_folder import AttemptWatch, growing_interval
from disttrain.runtime import heartbeat, log
from disttrain.runtime.process_group import World
from disttrain.runtime.stop_signals import CAUSES, StopRequests
from disttrain.telemetry.step_clock import CHECKPOINT, OTHER, StepClock
from disttrain.telemetry.step_result import StepResult

MAX_STRIDE = 1000
"""Largest number of steps between two agreements, because steps may become slower."""
SUPERSEDED_WITHIN_S = 40.0
"""Longest time in which rank 0 finds a newer attempt. Its writes of live files find one earlier."""
_SUPERSEDED = 1 + len(CAUSES)


def best_loss(history: Sequence[EvalPoint], world: World) -> float | None:
    """The loss of the best validation so far, on all ranks. Only rank 0 holds the history of earlier
    attempts."""
    known = [point.loss for point in history if point.loss is not None]
    best: float | None = world.all_gather_object(min(known, default=None))[0]
    return best


class StopAgreement(Hook):
    """Stopping and checkpointing of a run of `steps` steps; `best_loss` is that of the best validation so
    far."""

    def __init__(
        self,
        config: Config,
        world: World,
        attempt: AttemptWatch,
        requests: StopRequests,
        saver: CheckpointSaver,
        clock: StepClock,
        best_loss: float | None,
        steps: int,
        non_finite: NonFinitePolicy,
        replicas_agree: Callable[[int], bool] = lambda step: True,
        pace: Callable[[float], None] = lambda step_s: None,
    ) -> None:
        """`replicas_agree`: whether all ranks hold the same parameters after a step; if not, no agreement
        follows the step. `pace` receives the seconds of a step on the slowest rank, at each agreement."""
        self._replicas_agree = replicas_agree
        self._pace = pace
        self.next_step = self._started = saver.step
        """The next agreement follows this step."""
        self._steps = steps
        self._config = config.checkpoint
        self._check_s = config.job.stop_check_s
        self._world = world
        self._attempt = attempt
        self._requests = requests
        self._saver = saver
        self._clock = clock
        self._non_finite = non_finite
        self._best_loss = math.inf if best_loss is None else best_loss
        self._validated: EvalPoint | None = None
        self._is_best = False
        self._stride = 1
        """Steps between two agreements."""
        self._view_to_come: Callable[[], list[float]] | None = None
        """Waits for the view of an agreement that began after the last step."""
        self._synced_step = saver.step
        self._began = self._synced = self._saved = time.monotonic()

    def on_start(self, step: int) -> StopCause | None:
        return self.sync(step) if step < self._steps else None

    def on_step(self, result: StepResult) -> StopCause | None:
        step = result.step
        if not self.next_step <= step < self._steps or not self._replicas_agree(step):
            return None
        if self._save_is_due(step):
            return self.sync(step)
        if self._view_to_come is not None:
            return self._act(step, self._arrived_view())
        if self._stride == 1 or not self._replicas_agree(step + 1):
            return self.sync(step)
        self._view_to_come = self._start(step)
        return None

    def on_end(self) -> None:
        """Save the end of a run that has an interval by its config, or saved one by the default interval."""
        self._arrived_view()
        self._non_finite.check(self._world.all_reduce_max(self._non_finite.own_view(wait=True)))
        if self._config.requested or self._saver.step > self._started:
            self._save(self._steps)
        with heartbeat.within("checkpoint"):
            self._saver.close()

    def validated(self, point: EvalPoint) -> None:
        """Take the result of a validation after the step just done; it is the same on all ranks."""
        self._validated = point
        if point.loss is not None and point.loss < self._best_loss:
            self._best_loss = point.loss
            if self._config.best and self._config.requested:
                self._is_best = True
                self.next_step = point.step

    def sync(self, step: int) -> StopCause | None:
        """Agree after `step`: the cause to stop now, once the state is saved, or None. All ranks together."""
        if earlier := self._arrived_view():
            self._non_finite.check(earlier[-VIEW:])
        return self._act(step, self._start(step)())

    def _start(self, step: int) -> Callable[[], list[float]]:
        """Begin an agreement after `step`; the result waits for the view of all ranks."""
        own = [*self._own_view(step, time.monotonic()), *self._non_finite.own_view()]
        return self._world.start_all_reduce_max(own)

    def _arrived_view(self) -> list[float]:
        """Wait for the view of the agreement that has begun; empty if none has."""
        view_to_come, self._view_to_come = self._view_to_come, None
        return view_to_come() if view_to_come else []

    def _act(self, step: int, view: list[float]) -> StopCause | None:
        """Act after `step` on the `view` of all ranks."""
        (request, writing, time_is_up, step_s), non_finite = view[:-VIEW], view[-VIEW:]
        if request == _SUPERSEDED:
            raise Superseded(self._attempt.superseded() or "on rank 0")
        cause = CAUSES[int(request) - 1] if request else None
        if self._saver.pending and not writing:
            self._clock.switch(CHECKPOINT)
            with heartbeat.within("checkpoint"):
                self._saver.commit()
        self._non_finite.check(non_finite)
        if cause or time_is_up or self._save_is_due(step):
            self._save(step)
        if cause:
            log.info("stopping", step=step, cause=cause)
            with heartbeat.within("checkpoint"):
                self._saver.close()
        self._clock.switch(OTHER)
        self._synced, self._synced_step = time.monotonic(), step
        self._pace(step_s)
        self._stride = min(MAX_STRIDE, max(1, int(self._check_s / step_s))) if step_s else 1
        self.next_step = step + max(1, self._stride - 1)  # the view is read a step later
        if self._config.every_steps:
            until_due = self._config.every_steps - step % self._config.every_steps
            self.next_step = min(self.next_step, step + until_due)
        return cause

    def _own_view(self, step: int, now: float) -> list[float]:
        is_rank0 = self._world.rank == 0
        request = self._requests.pending()
        if is_rank0:
            max_age_s = growing_interval(self._check_s, SUPERSEDED_WITHIN_S, now - self._began)
            if self._attempt.superseded(max_age_s) is not None:
                request = _SUPERSEDED
        every_s = self._config.interval_s
        time_is_up = is_rank0 and every_s is not None and now - self._saved >= every_s
        step_s = (now - self._synced) / (step - self._synced_step) if step > self._synced_step else 0.0
        return [request, self._saver.writing, time_is_up, step_s]

    def _save_is_due(self, step: int) -> bool:
        every = self._config.every_steps
        return self._is_best or (every is not None and step % every == 0)

    def _save(self, step: int) -> None:
        self._is_best = False
        if step <= self._saver.step:
            return
        self._clock.switch(CHECKPOINT)
        validated = self._validated if self._validated and self._validated.step == step else None
        with heartbeat.within("checkpoint"):
            self._saver.save(step, validated.loss if validated else None)
        self._saved = time.monotonic()
