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
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.arms.experiment import ArmFailed
from jobs.arms.plan import Changes, changed

START_WITHIN_S = 300.0
"""Time limit for the start of an arm: imports, rendezvous, first connections."""
ANSWER_WITHIN_S = 300.0
"""Time limit of an answer, beyond that of the block."""
END_WITHIN_S = 30.0
Message = dict[str, Any]
Lines = queue.Queue[tuple[int, Message | None]]
"""Messages of arms by their number; None at the end of an arm."""


class ArmProcess:
    """This rank's process of one arm."""

    def __init__(self, number: int, command: Sequence[str], environ: Mapping[str, str], lines: Lines) -> None:
        self.number, self.lines = number, lines
        self._process = subprocess.Popen(
            [*command, "--store-prefix", f"arm-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environ),
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Message) -> None:
        """Write a command. A process that has ended gets none: its end is among the lines."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def exit_code(self, within_s: float) -> int | None:
        """The exit code; None if the process still runs after `within_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(within_s)
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

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put((self.number, json.loads(line)))
        self.lines.put((self.number, None))


class ArmRanks:
    """The arms of this rank. Number 0, the first baseline, starts with it on all ranks; on rank 0, further
    arms start and end by its methods (`experiment.Launcher`), on the other ranks by `follow`."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        first: Changes,
        block_s: float,
        *,
        leads: bool = True,
    ) -> None:
        self._command, self._environ, self.block_s = command, environ, block_s
        self._shared: Lines | None = None if leads else queue.Queue()
        """Messages of all arms, on ranks that follow; on rank 0, each arm has its own."""
        self._living: dict[int, ArmProcess] = {}
        self._started = 0
        self.facts: Message = {}
        """Conditions of the measurement, from the first arm."""
        self._carry_out({"start": 0, "changes": dict(first)})

    def follow(self) -> int:
        """On a rank other than 0: carry out the commands that rank 0 relays until no process is left; the
        exit code."""
        code = 1
        while self._living and self._shared is not None:
            number, message = self._shared.get()
            if message is None and number in self._living:
                code = 1 if self._living.pop(number).code_at_end() else 0
            elif message is not None and "relayed" in message:
                self._carry_out(message["relayed"])
        return code

    def start(self, changes: Changes, within_s: float = math.inf) -> int:
        """Start an arm on all ranks and wait until it is ready; its number. Raises `ArmFailed`.

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
        return number

    def block(self, arm: int, steps: int) -> float:
        """Seconds per step of the slowest rank. Raises `ArmFailed`."""
        within_s = ANSWER_WITHIN_S + 3 * self.block_s
        return float(self.ask(arm, {"steps": steps}, "seconds_per_step", within_s))

    def end(self, arm: int) -> None:
        """End an arm: by command, or by SIGKILL on all ranks if it has failed or does not end."""
        process = self._living.get(arm)
        if process is None:
            return
        process.send({"end": True})
        if process.exit_code(END_WITHIN_S) == 0:
            del self._living[arm]
        else:
            self._on_all_ranks({"kill": arm}, but=arm)

    def ask(self, number: int, message: Message | None, key: str, within_s: float) -> Any:
        """Send a command to an arm; the value of `key` in its next answer. Raises `ArmFailed`."""
        until, process = time.monotonic() + within_s, self._living[number]
        if message is not None:
            process.send(message)
        while True:
            try:
                _, answer = process.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise ArmFailed("the ranks did not answer in time") from None
            if answer is None:
                raise ArmFailed(f"rank 0 exited with code {process.code_at_end()}; its log has the reason")
            if "error" in answer:
                raise ArmFailed(answer["error"])
            if key in answer:
                return answer[key]

    def _on_all_ranks(self, message: Message, but: int | None) -> None:
        """Relay `message` through an arm other than `but`, and carry it out here too.

        Without another arm only this rank carries it out: its exit then ends the others.
        """
        through = next((number for number in self._living if number != but), None)
        if through is not None:
            self.ask(through, {"relay": message}, "relayed", ANSWER_WITHIN_S)
        self._carry_out(message)

    def _carry_out(self, message: Message) -> None:
        """Start or kill the process of an arm."""
        if "start" in message:
            number, environ = message["start"], changed(self._environ, message["changes"])
            lines = self._shared or queue.Queue()
            self._living[number] = ArmProcess(number, self._command, environ, lines)
        elif message["kill"] in self._living:
            self._living.pop(message["kill"]).kill()
