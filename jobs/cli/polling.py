"""States of runs with their clusters' word on them, for the verbs that show them. Nothing is written here."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jobs.schedulers.base import Scheduler
from jobs.status.refresh import refresh, refresh_slurm
from jobs.status.run_state import RunState

ASK_EVERY_S = 15.0
"""How often clusters are asked while runs are watched, beside reading the files each second."""

_TOLD = ("state", "retryable", "cause", "message", "silent", "job_id", "waits_for", "start_expected")
"""What a cluster may know better than the files."""

Read = Callable[[], list[RunState]]


def fresh(states: list[RunState]) -> list[RunState]:
    """The states with Slurm's word on its jobs; if it does not answer, that is said on stderr."""
    return refresh_slurm(states, warn)


def warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


class Watched:
    """Runs that are read again and again, and their clusters asked now and then, beside it: a controller that
    does not answer takes its time, and the files go on telling."""

    def __init__(self, read: Read, cluster: Scheduler | None = None) -> None:
        """`cluster` is asked as well as Slurm."""
        self._read = read
        self._cluster = cluster
        self._corrected: dict[Path, tuple[RunState, RunState]] = {}
        """By run: its state as its files had it, and with its cluster's word on it."""
        self._asked = float("-inf")
        self._asking: threading.Thread | None = None
        self.notice = ""
        """Who does not answer; empty when all do."""

    def read(self) -> list[RunState]:
        """The states now."""
        states = self._read()
        active = [state for state in states if state.active]
        if active and not self._is_asking() and time.monotonic() - self._asked >= ASK_EVERY_S:
            self._asking = threading.Thread(target=self._ask, args=(active,), daemon=True)
            self._asking.start()
        return [self._known(state) for state in states]

    def _is_asking(self) -> bool:
        return self._asking is not None and self._asking.is_alive()

    def _ask(self, active: list[RunState]) -> None:
        said: list[str] = []
        found = refresh_slurm(active, said.append)
        if self._cluster is not None and self._cluster.name != "slurm":
            found = refresh(found, self._cluster, say=said.append)
        self.notice = "; ".join(said)
        self._corrected = {
            before.run.path: (before, now) for before, now in zip(active, found, strict=True) if before != now
        }
        self._asked = time.monotonic()

    def _known(self, state: RunState) -> RunState:
        """The cluster's word holds until the run's files say something new."""
        before, now = self._corrected.get(state.run.path, (state, state))
        if any(getattr(state, name) != getattr(before, name) for name in ("state", "submission", "attempt")):
            return state
        told = {name: getattr(now, name) for name in _TOLD}
        return dataclasses.replace(state, **told, eta_s=state.eta_s if now.state == "running" else None)
