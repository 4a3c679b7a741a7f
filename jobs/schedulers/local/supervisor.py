"""Supervisor of a local job: `python -m jobs.schedulers.local.supervisor RUN_DIR ...`.

The supervisor waits for its turn in the host's queue, claims its submission, starts a `jobs.node.agent` for
each node, enforces the time limit, ends the agents on request, and records how the attempt ended. It has its
own session, so it continues when the terminal closes, and it kills all its descendants before it exits.

Standard library only, because many supervisors may wait at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from disttrain.records.json_files import CorruptFile, read_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import follow_ups, hook, journal, processes, run_code
from jobs.core.attempt import close_attempt, open_attempt
from jobs.core.signals import wait_for_signal
from jobs.node.allocation import log_line
from jobs.schedulers.local import fifo_queue

SHUTDOWN_S = 10.0
"""Seconds in which agents may end their ranks before all processes are killed."""

_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _AskedToEnd(Exception):
    pass


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.schedulers.local.supervisor", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--ticket", type=int, required=True)
    parser.add_argument("--job-id")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="run this in place of agents")
    given = parser.parse_args(argv)
    run = RunDir(given.run_dir.absolute())
    if given.command:
        return run_command(run, given.submission, given.ticket, given.command)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_ASKED_TO_END, signal.SIGCHLD})
    processes.become_subreaper()
    with fifo_queue.hold(given.ticket) as place:
        if place is None:
            journal.revoke(
                run, given.submission, "lost", "its ticket in the queue had expired when it started"
            )
            return 0
        journal.write_holder(run, given.submission, processes.current_process().as_dict())
        try:
            with _endable():
                place.wait_turn()
        except _AskedToEnd:
            journal.revoke(
                run, given.submission, "cancelled", "a signal to its supervisor ended it in the queue"
            )
            return 0
        supervise(run, given.submission, given.job_id)
        follow_ups.submit_last(run)  # from here on, no process is ended
    return 0


def run_command(folder: RunDir, submission: int, ticket: int, command: Sequence[str]) -> int:
    """Run a command after all jobs submitted earlier have ended, unless it is revoked; return its exit code.

    The command is a file of a code copy, with its arguments; it imports that copy.
    """
    with fifo_queue.hold(ticket) as place:
        if place is None:
            return 0
        journal.write_holder(folder, submission, processes.current_process().as_dict())
        place.wait_turn()
        if journal.entry(folder, submission).read("claim") is not None:
            return 0
        path = [str(Path(command[0]).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        return subprocess.run([sys.executable, *command], env=environ, check=False).returncode


@contextlib.contextmanager
def _endable() -> Iterator[None]:
    """Raise `_AskedToEnd` on a request to end within the block; outside it the signal stays pending."""

    def raise_it(*_: object) -> None:
        raise _AskedToEnd

    before = {number: signal.signal(number, raise_it) for number in _ASKED_TO_END}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED_TO_END)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED_TO_END)
        for number, handler in before.items():
            signal.signal(number, handler)


def supervise(run: RunDir, submission: int, job_id: str) -> None:
    """Claim the submission and run one attempt to its end; do nothing for a revoked submission."""
    try:
        record = read_json(run.run_json)
        config = record["config"]
        nodes = int(config["resources"]["nodes"])
        limit_min = float(config["job"]["time_limit_min"])
    except FileNotFoundError:  # the run was moved away or deleted
        return
    except (OSError, CorruptFile, KeyError, TypeError, ValueError) as error:
        journal.revoke(run, submission, "launch_failed", f"{run.run_json} cannot be used: {error}")
        return
    host = processes.host()
    attempt = open_attempt(run, submission, cluster="local", job_id=job_id, nodes=[host] * nodes)
    if attempt is None:
        return
    problem = run_code.code_problem(run, record)
    if problem is not None:
        close_attempt(run, attempt, {}, external_cause="refused", external_message=problem)
        _call_hook(run, attempt)
        return
    agents = _Agents(run, attempt, submission, nodes)
    stopped = agents.watch(limit_s=60 * limit_min)
    processes.kill_descendants()
    if attempt.is_replaced():
        return
    message = {
        "timeout": f"ended at job.time_limit_min={limit_min:g}",
        "cancelled": "a signal to its supervisor ended it",
    }.get(stopped or "")
    status = close_attempt(run, attempt, agents.exit_codes, external_cause=stopped, external_message=message)
    with (
        contextlib.suppress(OSError),
        open(attempt.node_log(0), "a", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
    ):
        log_line(f"{status.cause}: {status.message}" if status.message else status.cause)
    _call_hook(run, attempt)


def _call_hook(run: RunDir, attempt: Attempt) -> None:
    problem = hook.call_after(run, attempt)
    if problem is not None:
        print(problem, flush=True)


class _Agents:
    """The agents of one attempt, one for each node."""

    def __init__(self, run: RunDir, attempt: Attempt, submission: int, nodes: int) -> None:
        self.exit_codes: dict[int, int] = {}
        self._node_of = {}
        for node in range(nodes):
            command = [sys.executable, "-m", "jobs.node.agent", str(run.path)]
            command += map(str, (submission, attempt.number, node, nodes))
            with open(attempt.node_log(node), "ab") as log:
                self._node_of[processes.spawn(command, log=log.fileno())] = node

    def watch(self, limit_s: float) -> str | None:
        """Wait for the end of all agents. Returns `timeout` or `cancelled` if the supervisor ended them.

        After one agent fails, the others have `SHUTDOWN_S` seconds to end. After one is killed by a signal,
        the others are killed at once.
        """
        stopped = None
        deadline = time.monotonic() + limit_s
        kill_at: float | None = None
        while self._alive():
            until = deadline if kill_at is None else kill_at
            received = wait_for_signal({*_ASKED_TO_END, signal.SIGCHLD}, until - time.monotonic())
            self._note(processes.reap_children())
            if received is None and kill_at is not None:
                self._note(processes.kill_descendants())
                break
            asked = received in _ASKED_TO_END
            if stopped is None and (asked or (received is None and time.monotonic() >= deadline)):
                stopped = "cancelled" if asked else "timeout"
                self._terminate()
            if any(code < 0 for code in self.exit_codes.values()):
                kill_at = time.monotonic()
            elif kill_at is None and (stopped or any(self.exit_codes.values())):
                kill_at = time.monotonic() + SHUTDOWN_S
        return stopped

    def _alive(self) -> list[int]:
        return [pid for pid, node in self._node_of.items() if node not in self.exit_codes]

    def _note(self, ended: dict[int, int]) -> None:
        for pid, code in ended.items():
            if pid in self._node_of:  # others are adopted orphans
                self.exit_codes[self._node_of[pid]] = code

    def _terminate(self) -> None:
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
