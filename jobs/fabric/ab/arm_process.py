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

from jobs.fabric.ab.experiment import Arm, ArmFailed, Changes
from jobs.fabric.ab.settings import changed

START_WITHIN_S = 300.0
"""Time limit for the start of an arm: imports, rendezvous, first connections."""
ANSWER_WITHIN_S = 300.0
"""Time limit of an answer, beyond that of the block."""
END_WITHIN_S = 30.0


class ArmProcess:
    """This rank's process of one arm. Its lines go to `lines` as (number, message), None at its end."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        lines: queue.Queue[tuple[int, dict[str, Any] | None]],
    ) -> None:
        self.number = number
        self._process = subprocess.Popen(
            [*command, "--store-prefix", f"arm-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
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

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a command that the process did not read
            self._process.stdin.close()

    def _read(self, lines: queue.Queue[tuple[int, dict[str, Any] | None]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.put((self.number, json.loads(line)))
        lines.put((self.number, None))


class RankProcesses:
    """The arm processes of this rank, by number. Number 0, the first baseline, starts with it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], first: Changes) -> None:
        self._command, self._environment = command, environment
        self.lines: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self.living: dict[int, ArmProcess] = {}
        self.carry_out({"start": 0, "changes": dict(first)})

    def carry_out(self, message: Mapping[str, Any]) -> None:
        """Start or kill the process of an arm."""
        if "start" in message:
            number = message["start"]
            environment = changed(self._environment, message["changes"])
            self.living[number] = ArmProcess(number, self._command, environment, self.lines)
        elif message["kill"] in self.living:
            self.living.pop(message["kill"]).kill()

    def follow(self) -> int:
        """On a rank other than 0: carry out the commands that rank 0 relays until no process is left; the
        exit code."""
        code = 1
        while self.living:
            number, message = self.lines.get()
            if message is None and number in self.living:
                code = 1 if _code_at_end(self.living.pop(number)) else 0
            elif message is not None and "relayed" in message:
                self.carry_out(message["relayed"])
        return code


def _code_at_end(process: ArmProcess) -> int | None:
    """The exit code of a process that has closed its output by itself.

    SIGKILL does not come from the variables of an arm. It ends the process of this rank, too, so that the job
    ends with this cause, and not with a failed comparison.
    """
    code = process.exit_code(END_WITHIN_S)
    if code == -signal.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    return code


class RunningArm:
    """An arm, on rank 0."""

    def __init__(self, number: int, launcher: RankLauncher, within_s: float = START_WITHIN_S) -> None:
        self.number, self._launcher = number, launcher
        self.facts: dict[str, Any] = launcher.answer(number, "ready", within_s)

    def block(self, steps: int) -> float:
        """Seconds per step of the slowest rank. Raises `ArmFailed`."""
        self._launcher.send(self.number, {"steps": steps})
        within_s = ANSWER_WITHIN_S + 3 * self._launcher.block_s
        return float(self._launcher.answer(self.number, "seconds_per_step", within_s))


class RankLauncher:
    """Starts and ends arms on all ranks; on rank 0 (`experiment.Launcher`)."""

    def __init__(self, processes: RankProcesses, block_s: float = 0.0) -> None:
        self._processes = processes
        self.block_s = block_s
        """Intended seconds of a block."""
        self._started = 0
        self._unread: dict[int, deque[dict[str, Any] | None]] = defaultdict(deque)
        self.facts: dict[str, Any] = {}
        """Conditions of the measurement, from the first arm."""

    def start(self, changes: Changes, within_s: float = math.inf) -> RunningArm:
        """Start an arm on all ranks and wait until it is ready. Raises `ArmFailed`.

        The first arm is started by all ranks themselves, and ignores `changes`.
        """
        number = self._started
        self._started += 1
        if number:
            self._on_all_ranks({"start": number, "changes": dict(changes)}, but=None)
        try:
            arm = RunningArm(number, self, min(within_s, START_WITHIN_S))
        except ArmFailed:
            self._kill(number)
            raise
        self.facts = self.facts or arm.facts
        return arm

    def end(self, arm: Arm) -> None:
        """End an arm: by command, or by SIGKILL on all ranks if it has failed or does not end."""
        assert isinstance(arm, RunningArm)
        process = self._processes.living.get(arm.number)
        if process is None:
            return
        process.send({"end": True})
        if process.exit_code(END_WITHIN_S) == 0:
            del self._processes.living[arm.number]
        else:
            self._kill(arm.number)

    def send(self, number: int, message: dict[str, Any]) -> None:
        """Send a command to an arm."""
        if number in self._processes.living:
            self._processes.living[number].send(message)

    def answer(self, number: int, key: str, within_s: float) -> Any:
        """The value of `key` in the next answer of an arm. Raises `ArmFailed`."""
        until = time.monotonic() + within_s
        while True:
            message = self._next(number, until)
            if message is None:
                process = self._processes.living.get(number)
                code = _code_at_end(process) if process else None
                raise ArmFailed(f"rank 0 exited with code {code}; its log has the reason")
            if "error" in message:
                raise ArmFailed(message["error"])
            if key in message:
                return message[key]

    def _next(self, number: int, until: float) -> dict[str, Any] | None:
        """The next line of an arm, None at its end. Raises `ArmFailed` at the time `until`."""
        while not self._unread[number]:
            try:
                of, message = self._processes.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise ArmFailed("the ranks did not answer in time") from None
            self._unread[of].append(message)
        return self._unread[number].popleft()

    def _kill(self, number: int) -> None:
        self._on_all_ranks({"kill": number}, but=number)

    def _on_all_ranks(self, message: dict[str, Any], but: int | None) -> None:
        """Relay `message` through an arm other than `but`, and carry it out here too.

        Without another arm only this rank carries it out: its exit then ends the others.
        """
        through = next((each for each in self._processes.living if each != but), None)
        if through is not None:
            self.send(through, {"relay": message})
            self.answer(through, "relayed", ANSWER_WITHIN_S)
        self._processes.carry_out(message)
