"""Step-boundary agreement: the ranks decide together whether to stop, and commit and take checkpoints.

Each boundary costs one comparison (`next_step`). About every `job.stop_check_s` seconds, and where a
checkpoint is due by its step, one small all-reduce gives all ranks the same view: requests to stop, writes in
progress, time, steps skipped for gradients that are not finite. All ranks act on the same view, and no rank
enters a collective alone.

Where steps are short, the all-reduce runs beside the next step, and the ranks act on its result after that
step: no rank then waits at the agreement for a slower one. A checkpoint that is due by its step, and steps
longer than half of `job.stop_check_s`, have an all-reduce of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from disttrain.checkpoint.saver import CheckpointSaver
from disttrain.errors import NonFinite, Superseded
from disttrain.parallel.base import Strategy
from disttrain.records.exit_causes import StopCause
from disttrain.records.metrics import EvalPoint
from disttrain.records.shared_folder import growing_interval
from disttrain.runtime import log
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.stop_signals import CAUSES, StopRequests
from disttrain.telemetry.recorder import Recorder
from disttrain.telemetry.step_clock import CHECKPOINT, OTHER

MAX_STRIDE = 1000
"""Largest number of steps between two agreements, because steps may become slower."""
SUPERSEDED_WITHIN_S = 40.0
"""Longest time in which rank 0 finds a newer attempt. Its writes of live files find one earlier."""
_SUPERSEDED = 1 + len(CAUSES)


def refuse_between_averages(strategy: Strategy, step: int, steps: int, call: str) -> None:
    """Raise `RuntimeError` where the parameters of the ranks differ after `step` of `steps`; the last step
    averages them."""
    if step < steps and not strategy.replicas_agree(step):
        raise RuntimeError(
            f"{call} after step {step}: the ranks hold different parameters until the next average, by "
            "parallel.gradient_communication.average_every"
        )


class Agreement:
    """Agreements of a training of `steps` steps, of which `start` are done.

    `requests` are those to stop. None, for a script: the ranks never stop, save no checkpoint by themselves,
    and agree every `train.log_every` steps. No agreement follows a step after which the ranks hold different
    parameters, by `replicas_agree`.
    """

    def __init__(
        self,
        recorder: Recorder,
        saver: CheckpointSaver,
        steps: int,
        start: int,
        requests: StopRequests | None,
        replicas_agree: Callable[[int], bool] = lambda step: True,
    ) -> None:
        self.next_step = self._start_step = start
        """The next agreement follows this step."""
        self._recorder, self._saver, self._steps, self._requests = recorder, saver, steps, requests
        self._replicas_agree = replicas_agree
        self._world, self._attempt = recorder.timed_world, recorder.attempt_watch
        self._config, self._job = recorder.config.checkpoint, recorder.config.job
        self._stops_at_once = recorder.config.precision.on_non_finite == "stop"
        self._most_skipped = 1 if self._stops_at_once else recorder.config.precision.max_skipped
        known = (point.loss for point in recorder.eval_history if point.loss is not None)
        # only rank 0 has the validations of earlier attempts
        self._best_loss = recorder.world.of_rank0(min(known, default=math.inf))
        self._validated: EvalPoint | None = None
        self._is_best = False
        self._stride = 1
        """Steps between two agreements."""
        self._view_to_come: Callable[[], list[float]] | None = None
        """Waits for the view of an agreement that began after the last step."""
        self._synced_step = start
        self._began = self._synced = self._saved = time.monotonic()

    def boundary(self, step: int) -> StopCause | None:
        """The cause to stop after `step` now that the state is saved, or None; the last step has `end`
        instead. All ranks together."""
        if not self.next_step <= step < self._steps or not self._replicas_agree(step):
            return None
        if self._save_is_due(step):
            self._check(self._arrived_view()[-2:])
        elif self._view_to_come is None and self._stride > 1 and self._replicas_agree(step + 1):
            self._view_to_come = self._start(step)
            return None
        return self._act(step, self._arrived_view() or self._start(step)())

    def end(self, step: int) -> None:
        """End without a stop after `step`, with a checkpoint where the config has an interval or the default
        interval led to one. All ranks together."""
        self._arrived_view()
        if step == self._steps:
            self.check_gradients()
        if self._requests and (self._config.requested or self._saver.step > self._start_step):
            self.save(step)
        with heartbeat.within("checkpoint"):
            self._saver.close()

    def validated(self, point: EvalPoint) -> None:
        """Take the result of a validation after the step just done; it is the same on all ranks."""
        self._validated = point
        if point.loss is not None and point.loss < self._best_loss:
            self._best_loss = point.loss
            if self._config.best and self._config.requested and self._requests:
                self._is_best = True
                self.next_step = point.step

    def save(self, step: int) -> None:
        """Begin the checkpoint of the state after `step`, unless it has one."""
        self._is_best = False
        if step <= self._saver.step:
            return
        self._recorder.clock.switch(CHECKPOINT)
        validated = self._validated if self._validated and self._validated.step == step else None
        with heartbeat.within("checkpoint"):
            self._saver.save(step, validated.loss if validated else None)
        self._saved = time.monotonic()

    def check_gradients(self) -> None:
        """Raise `NonFinite` by `precision.on_non_finite`, for the steps up to now. All ranks together."""
        self._check(self._world.all_reduce_max(self._skipped(wait=True)))

    def _start(self, step: int) -> Callable[[], list[float]]:
        """Begin an agreement after `step`; the result waits for the view of all ranks."""
        is_rank0, now, request, time_is_up = self._world.rank == 0, time.monotonic(), 0, False
        if self._requests is not None:
            request, every_s = self._requests.pending(), self._config.interval_s
            time_is_up = is_rank0 and every_s is not None and now - self._saved >= every_s
        if is_rank0:
            max_age_s = growing_interval(self._job.stop_check_s, SUPERSEDED_WITHIN_S, now - self._began)
            if self._attempt.superseded(max_age_s) is not None:
                request = _SUPERSEDED
        step_s = (now - self._synced) / (step - self._synced_step) if step > self._synced_step else 0.0
        view = [request, self._saver.writing, time_is_up, step_s, *self._skipped()]
        return self._world.start_all_reduce_max(view)

    def _arrived_view(self) -> list[float]:
        """Wait for the view of the agreement that has begun; empty if none has."""
        view_to_come, self._view_to_come = self._view_to_come, None
        return view_to_come() if view_to_come else []

    def _act(self, step: int, view: list[float]) -> StopCause | None:
        """Act after `step` on the `view` of all ranks."""
        request, writing, time_is_up, step_s, *skipped = view
        if request == _SUPERSEDED:
            raise Superseded(self._attempt.superseded() or "on rank 0")
        cause = CAUSES[int(request) - 1] if request else None
        if self._saver.pending and not writing:
            self._recorder.clock.switch(CHECKPOINT)
            with heartbeat.within("checkpoint"):
                self._saver.commit()
        self._check(skipped)
        if cause or time_is_up or self._save_is_due(step):
            self.save(step)
        if cause:
            log.info("stopping", step=step, cause=cause)
            with heartbeat.within("checkpoint"):
                self._saver.close()
        self._recorder.clock.switch(OTHER)
        self._synced, self._synced_step = time.monotonic(), step
        self._stride = min(MAX_STRIDE, max(1, int(self._job.stop_check_s / step_s))) if step_s else 1
        self.next_step = step + max(1, self._stride - 1)  # the view is read a step later
        if self._requests is not None:
            self._recorder.set_pace(step_s)
        else:
            every = self._recorder.config.train.log_every
            self._stride, self.next_step = 1, step + every - step % every
        if self._config.every_steps:
            until_due = self._config.every_steps - step % self._config.every_steps
            self.next_step = min(self.next_step, step + until_due)
        return cause

    def _save_is_due(self, step: int) -> bool:
        every = self._config.every_steps
        return self._is_best or (every is not None and step % every == 0)

    def _skipped(self, wait: bool = False) -> list[float]:
        """(skipped steps that count, newest skipped step) of this rank, which reads them once its device has
        finished them: a rank may be behind another, so the maximum over ranks counts."""
        in_a_row, last = self._recorder.skipped_steps(wait)
        return [min(last, 1) if self._stops_at_once else in_a_row, last]

    def _check(self, skipped: Sequence[float]) -> None:
        """Raise `NonFinite` if the run ends, with the same view on all ranks."""
        count, last = map(int, skipped or (0, 0))
        if count < self._most_skipped:
            return
        if self._stops_at_once:
            raise NonFinite(f"step {last}: the gradients are not finite (precision.on_non_finite=stop)")
        raise NonFinite(
            f"{count} steps in a row, up to step {last}, have gradients that are not finite "
            f"(precision.max_skipped={self._most_skipped})"
        )
