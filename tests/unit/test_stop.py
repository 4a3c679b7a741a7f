"""What asks a run to stop, and which cause wins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disttrain.stop import CAUSES, SIGNALS, Requests, Signals, deadline


def cause(requests: Requests) -> str | None:
    pending = requests.pending()
    return CAUSES[pending - 1] if pending else None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"DISTTRAIN_DEADLINE": "2000"}, 1940.0),
        ({"SLURM_JOB_END_TIME": "2000"}, 1940.0),
        ({"SLURM_JOB_END_TIME": "3000", "DISTTRAIN_DEADLINE": "2000"}, 1940.0),
        ({"DISTTRAIN_DEADLINE": "1100"}, 1075.0),  # little time: three quarters of it are for training
        ({"DISTTRAIN_DEADLINE": "900"}, 900.0),  # over before it began
        ({"SLURM_JOB_END_TIME": "UNLIMITED"}, None),
    ],
)
def test_deadline(environment: dict[str, str], expected: float | None) -> None:
    assert deadline(environment, lead_s=60, now=1000.0) == expected


def test_the_strongest_request_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    monkeypatch.setenv("DISTTRAIN_DEADLINE", str(time.time() + 3600))
    early = Requests(tmp_path / "STOP", signals, 60, looks=True)
    monkeypatch.setenv("DISTTRAIN_DEADLINE", str(time.time() - 1))
    late = Requests(tmp_path / "STOP", signals, 60, looks=True)
    assert (cause(early), cause(late)) == (None, "deadline")
    signals.received = signal.SIGTERM
    assert (cause(early), cause(late)) == ("preempted", "deadline")
    (tmp_path / "STOP").touch()
    assert (cause(early), cause(late)) == ("stopped", "stopped")
    blind = Requests(tmp_path / "STOP", Signals(), 60, looks=False)
    monkeypatch.delenv("DISTTRAIN_DEADLINE")
    assert cause(Requests(tmp_path / "STOP", Signals(), 60, looks=False)) is None
    assert cause(blind) == "deadline"


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_is_noted_and_nothing_else_happens(number: signal.Signals) -> None:
    signals, before = Signals(), signal.getsignal(number)
    signals.install()
    try:
        os.kill(os.getpid(), number)
        assert signals.received == number
    finally:
        for each in SIGNALS:
            signal.signal(each, before)


def test_it_is_there_before_torch() -> None:
    code = "import sys, disttrain.stop; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
