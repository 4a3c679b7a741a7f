"""The processes of arms: one for each rank and arm, started by the rank's own process.

Rank 0 leads. It starts an arm on all ranks by a message that a living arm relays, so that the parents need no
process group, and no torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.arms.plan import Changes, changed
from jobs.arms.run import Arm, ArmFailed

START_WITHIN_S = 300.0
"""Time limit for the start of an arm: imports, rendezvous, first connections."""
ANSWER_WITHIN_S = 300.0
"""Time limit of an answer, beyond that of the block."""
END_WITHIN_S = 30.0
Lines = queue.Queue[tuple[int, dict[str, Any] | None]]
"""Messages of arms by their number; None at the end of an arm."""


class ArmProcess:
    """This rank's process of one arm."""

    def __init__(self, number: int, command: Sequence[str], environ: Mapping[str, str], lines: Lines) -> None:
        self.number = number
        self._process = subprocess.Popen(
            [*command, "--store-prefix", f"arm-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environ),
            text=True,
        )
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Write a command. A process that has ended gets none: its end is among the lines."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def exit_code(self, within_s: float) -> int | None:
        """The exit code; None if the process still runs after `within_s` seconds."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def code_at_end(self) -> int | None:
        """The exit code of a process that has closed its output by itself.

        SIGKILL does not come from the variables of an arm. It ends the process of this rank, too, so that the
        job ends with this cause, and not with a failed comparison.
        """
        code = self.exit_code(END_WITHIN_S)
        if code == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return code

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a command that the process did not read
            self._process.stdin.close()

    def _read(self, lines: Lines) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put((self.number, json.loads(line)))
        lines.put((self.number, None))


class RunningArm:
    """An arm, on rank 0."""

    def __init__(self, number: int, ranks: ArmRanks) -> None:
        self.number, self._ranks = number, ranks

    def block(self, steps: int) -> float:
        """Seconds per step of the slowest rank. Raises `ArmFailed`."""
        within_s = ANSWER_WITHIN_S + 3 * self._ranks.block_s
        return float(self._ranks.ask(self.number, {"steps": steps}, "seconds_per_step", within_s))


class ArmRanks:
    """The arms of this rank. Number 0, the first baseline, starts with it on all ranks; on rank 0, further
    arms start and end by its methods (`run.Launcher`), on the other ranks by `follow`."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], first: Changes, block_s: float
    ) -> None:
        self._command, self._environ, self.block_s = command, environ, block_s
        self._lines: Lines = queue.Queue()
        self._unread: dict[int, deque[dict[str, Any] | None]] = defaultdict(deque)
        self._living: dict[int, ArmProcess] = {}
        self._started = 0
        self.facts: dict[str, Any] = {}
        """Conditions of the measurement, from the first arm."""
        self._carry_out({"start": 0, "changes": dict(first)})

    def follow(self) -> int:
        """On a rank other than 0: carry out the commands that rank 0 relays until no process is left; the
        exit code."""
        code = 1
        while self._living:
            number, message = self._lines.get()
            if message is None and number in self._living:
                code = 1 if self._living.pop(number).code_at_end() else 0
            elif message is not None and "relayed" in message:
                self._carry_out(message["relayed"])
        return code

    def start(self, changes: Changes, within_s: float = math.inf) -> RunningArm:
        """Start an arm on all ranks and wait until it is ready. Raises `ArmFailed`.

        The first arm is started by all ranks themselves, and ignores `changes`.
        """
        number = self._started
        self._started += 1
        if number:
            self._on_all_ranks({"start": number, "changes": dict(changes)}, but=None)
        try:
            facts = self.ask(number, None, "ready", min(within_s, START_WITHIN_S))
        except ArmFailed:
            self._on_all_ranks({"kill": number}, but=number)
            raise
        self.facts = self.facts or facts
        return RunningArm(number, self)

    def end(self, arm: Arm) -> None:
        """End an arm: by command, or by SIGKILL on all ranks if it has failed or does not end."""
        assert isinstance(arm, RunningArm)
        process = self._living.get(arm.number)
        if process is None:
            return
        process.send({"end": True})
        if process.exit_code(END_WITHIN_S) == 0:
            del self._living[arm.number]
        else:
            self._on_all_ranks({"kill": arm.number}, but=arm.number)

    def ask(self, number: int, message: dict[str, Any] | None, key: str, within_s: float) -> Any:
        """Send a command to an arm; the value of `key` in its next answer. Raises `ArmFailed`."""
        until = time.monotonic() + within_s
        process = self._living.get(number)
        if process is not None and message is not None:
            process.send(message)
        while True:
            answer = self._next(number, until)
            if answer is None:
                code = process.code_at_end() if process else None
                raise ArmFailed(f"rank 0 exited with code {code}; its log has the reason")
            if "error" in answer:
                raise ArmFailed(answer["error"])
            if key in answer:
                return answer[key]

    def _next(self, number: int, until: float) -> dict[str, Any] | None:
        """The next message of an arm, None at its end. Raises `ArmFailed` at the time `until`."""
        while not self._unread[number]:
            try:
                of, message = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise ArmFailed("the ranks did not answer in time") from None
            self._unread[of].append(message)
        return self._unread[number].popleft()

    def _on_all_ranks(self, message: dict[str, Any], but: int | None) -> None:
        """Relay `message` through an arm other than `but`, and carry it out here too.

        Without another arm only this rank carries it out: its exit then ends the others.
        """
        through = next((each for each in self._living if each != but), None)
        if through is not None:
            self.ask(through, {"relay": message}, "relayed", ANSWER_WITHIN_S)
        self._carry_out(message)

    def _carry_out(self, message: Mapping[str, Any]) -> None:
        """Start or kill the process of an arm."""
        if "start" in message:
            number = message["start"]
            environ = changed(self._environ, message["changes"])
            self._living[number] = ArmProcess(number, self._command, environ, self._lines)
        elif message["kill"] in self._living:
            self._living.pop(message["kill"]).kill()
