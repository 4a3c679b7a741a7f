"""Waiting for blocked signals, also in a process that is suspended meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from jobs.core.signals import wait_for_signal

WAITING = """
import signal
from jobs.core.signals import wait_for_signal
signals = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
while True:
    print(wait_for_signal(signals, 0.5), flush=True)
"""


def test_a_pending_signal_is_returned_at_once_and_once():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert wait_for_signal({signal.SIGUSR1}, 60) == signal.SIGUSR1
        assert wait_for_signal({signal.SIGUSR1}, 0) is None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_suspension_past_the_timeout_is_no_signal():
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "None\n"
            for _ in range(3):
                time.sleep(0.1)  # it waits again
                suspend(process.pid)
                time.sleep(1)
                process.send_signal(signal.SIGCONT)
                assert process.stdout.readline() == "None\n"
            suspend(process.pid)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            while (line := process.stdout.readline()) == "None\n":
                pass
            assert line == f"{signal.SIGTERM}\n"
        finally:
            process.kill()


def suspend(pid: int) -> None:
    """Send SIGSTOP and wait until the process is stopped."""
    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
