"""A command on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

WITHIN_S = 100.0
"""Less than the time limit of a test, so that a failure shows what was drawn."""


class Terminal:
    """A command on a pseudo-terminal, and the text that it has drawn so far."""

    def __init__(self, command: list[str], columns: int = 120, rows: int = 20, **variables: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        # these would hide the size of the window, or change its colours
        hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        env = {name: os.environ[name] for name in os.environ if name not in hidden}
        env |= {"TERM": "xterm-256color", **variables}
        # in the background it may be ignored, which a process inherits
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        signal.signal(signal.SIGINT, before)
        os.close(slave)
        self.drawn = ""

    def resize(self, columns: int, rows: int) -> None:
        """Change the window's size, as a terminal does; its process is told with SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if hasattr(self, "process"):
            self.process.send_signal(signal.SIGWINCH)

    def wait_for(self, text: str) -> str:
        """What was drawn up to and with `text`, which is then taken off."""
        deadline = time.monotonic() + WITHIN_S
        while text not in self.drawn:
            assert time.monotonic() < deadline, f"{text!r} was not drawn: {self.drawn!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.drawn += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # its end of the terminal was closed
                    assert text in self.drawn, self.drawn
        before, found, self.drawn = self.drawn.partition(text)
        return before + found

    def type(self, text: str) -> None:
        """Send text to the command's standard input."""
        os.write(self.master, text.encode())

    def read_all(self) -> str:
        """Everything that is drawn until the command ends."""
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.drawn += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the command closed its end of the terminal
                    return self.drawn
        raise AssertionError(f"the command did not end: {self.drawn!r}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
