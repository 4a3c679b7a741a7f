"""Read run states with scheduler information, once or repeatedly. Nothing is written.

`refresh_or_warn` serves `status` and `show`; `PolledRuns` serves `watch` and `--wait`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jobs.cli.command_output import print_warning
from jobs.schedulers.base import Scheduler
from jobs.status.refresh import refresh, refresh_all
from jobs.status.run_state import RunState

QUERY_INTERVAL_S = 15.0
"""Seconds between scheduler queries while runs are watched. Files are read every second."""

_SCHEDULER_FIELDS = (
    "state",
    "retryable",
    "cause",
    "message",
    "before_agents",
    "silent",
    "job_id",
    "waits_for",
    "start_expected",
)
"""Fields of a `RunState` that a scheduler query may correct."""

ReadStates = Callable[[], list[RunState]]


def refresh_or_warn(states: list[RunState]) -> list[RunState]:
    """Correct the states by a scheduler query; print a warning if the scheduler does not answer."""
    return refresh_all(states, print_warning)


class PolledRuns:
    """Runs that are read again and again.

    A thread queries the schedulers every `QUERY_INTERVAL_S`, since an unresponsive controller blocks for
    seconds. Meanwhile `read` returns the states from the files.
    """

    def __init__(self, read: ReadStates, scheduler: Scheduler | None = None) -> None:
        """`scheduler` is queried as well if its jobs are processes of this host."""
        self._read = read
        self._scheduler = scheduler
        self._schedulers: dict[str, Scheduler] = {}
        self._corrected: dict[Path, tuple[RunState, RunState]] = {}
        """By run directory: the state from its files, and the state corrected by the scheduler."""
        self._queried = float("-inf")
        self._query_thread: threading.Thread | None = None
        self.notice = ""
        """Names the schedulers that do not answer; empty when all answer."""

    def read(self) -> list[RunState]:
        """The current states."""
        states = self._read()
        active = [state for state in states if state.active]
        is_due = time.monotonic() - self._queried >= QUERY_INTERVAL_S
        if active and not self._is_querying() and is_due:
            self._query_thread = threading.Thread(target=self._query, args=(active,), daemon=True)
            self._query_thread.start()
        return [self._with_correction(state) for state in states]

    def _is_querying(self) -> bool:
        return self._query_thread is not None and self._query_thread.is_alive()

    def _query(self, active: list[RunState]) -> None:
        warnings: list[str] = []
        found = refresh_all(active, warnings.append, self._schedulers)
        if self._scheduler is not None and self._scheduler.one_machine:
            found = refresh(found, self._scheduler, warn=warnings.append)
        self.notice = "; ".join(warnings)
        if warnings:  # without an answer, the name of the cluster is still unknown
            self._schedulers.clear()
        self._corrected = {
            before.run.path: (before, now) for before, now in zip(active, found, strict=True) if before != now
        }
        self._queried = time.monotonic()

    def _with_correction(self, state: RunState) -> RunState:
        """Apply the last correction until the files of the run change its state."""
        before, now = self._corrected.get(state.run.path, (state, state))
        if any(getattr(state, name) != getattr(before, name) for name in ("state", "submission", "attempt")):
            return state
        corrected = {name: getattr(now, name) for name in _SCHEDULER_FIELDS}
        return dataclasses.replace(state, **corrected, eta_s=state.eta_s if now.state == "running" else None)
