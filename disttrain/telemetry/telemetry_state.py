"""The telemetry as a part of the state of training that resumes."""

from __future__ import annotations

from disttrain.checkpoint.resume import ResumeSource
from disttrain.checkpoint.share import State
from disttrain.checkpoint.state import OWN
from disttrain.telemetry.recorder import Recorder

_HISTORY = "history."


class TelemetryState:
    """Implements `Stateful` for a `Recorder` that goes on from `origin`, if there is one."""

    def __init__(self, telemetry: Recorder, origin: ResumeSource | None) -> None:
        self._telemetry = telemetry
        self._origin = origin

    def state_dict(self) -> State:
        history, own = self._telemetry.state()
        return {
            **{_HISTORY + name: value for name, value in history.items()},
            **{OWN + name: value for name, value in own.items()},
        }

    def load_state_dict(self, state: State) -> None:
        if self._origin is None or not self._origin.step:
            return
        history, own = (
            {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            for prefix in (_HISTORY, OWN)
        )
        self._telemetry.resume(self._origin.step, history, own, same_run=self._origin.same_run)
