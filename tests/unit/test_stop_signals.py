"""What asks a run to stop, and which cause wins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disttrain.config.stop_time import lead_within, stop_time
from disttrain.records.json_files import write_json
from disttrain.runtime.stop_signals import CAUSES, SIGNALS, StopRequests, StopSignals


def cause(requests: StopRequests) -> str | None:
    pending = requests.pending()
    return CAUSES[pending - 1] if pending else None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"DISTTRAIN_DEADLINE": "2000"}, 1940.0),
        ({"SLURM_JOB_END_TIME": "2000"}, 1940.0),
        ({"SLURM_JOB_END_TIME": "3000", "DISTTRAIN_DEADLINE": "2000"}, 1940.0),
        ({"DISTTRAIN_DEADLINE": "1061"}, 1001.0),  # the lead counts as long as it leaves any time
        ({"DISTTRAIN_DEADLINE": "1060"}, 1045.0),  # else three quarters of it are for training
        ({"DISTTRAIN_DEADLINE": "900"}, 900.0),  # over before it began
        ({"SLURM_JOB_END_TIME": "UNLIMITED"}, None),
    ],
)
def test_deadline(environment: dict[str, str], expected: float | None) -> None:
    assert stop_time(environment, lead_s=60, now=1000.0) == expected


@pytest.mark.parametrize(("left_s", "expected"), [(600, 60), (60, 15), (40, 10), (-5, 0)])
def test_a_short_job_has_a_short_lead(left_s: float, expected: float) -> None:
    assert lead_within(left_s, 60) == expected


def test_the_strongest_request_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals, asked = StopSignals(), tmp_path / "stop.json"
    monkeypatch.setenv("DISTTRAIN_DEADLINE", str(time.time() + 3600))
    early = StopRequests(tmp_path / "STOP", asked, signals, 60, 0)
    monkeypatch.setenv("DISTTRAIN_DEADLINE", str(time.time() - 1))
    late = StopRequests(tmp_path / "STOP", asked, signals, 60, 0)
    assert (cause(early), cause(late)) == (None, "deadline")
    signals.record(signal.SIGTERM)
    assert (cause(early), cause(late)) == ("preempted", "deadline")
    (tmp_path / "STOP").touch()
    assert (cause(early), cause(late)) == ("stopped", "stopped")
    blind = StopRequests(None, None, StopSignals(), 60, 0)
    monkeypatch.delenv("DISTTRAIN_DEADLINE")
    assert cause(StopRequests(None, None, StopSignals(), 60, 0)) is None
    assert cause(blind) == "deadline"


def test_a_request_of_an_agent(tmp_path: Path) -> None:
    asked = tmp_path / "stop.json"
    requests = StopRequests(tmp_path / "STOP", asked, StopSignals(), 60, 0)
    assert cause(requests) is None
    write_json(asked, {"cause": "deadline"})
    assert cause(requests) == "deadline"
    assert cause(StopRequests(None, None, StopSignals(), 60, 0)) is None
    asked.write_text("")  # a file system may show it before what is in it
    assert cause(requests) == "preempted"


def test_signals_that_do_not_count_do_not_end_the_process(tmp_path: Path) -> None:
    signals = StopSignals()
    signals.record(signal.SIGUSR2)  # before it is known whether this is a job's rank
    assert signals.received
    signals.counted = (signal.SIGTERM,)
    assert not signals.received
    signals.record(signal.SIGTERM)
    assert signals.received


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_is_recorded_and_nothing_else_happens(number: signal.Signals) -> None:
    signals, before = StopSignals(), signal.getsignal(number)
    signals.install()
    try:
        os.kill(os.getpid(), number)
        assert signals.received
    finally:
        for each in SIGNALS:
            signal.signal(each, before)


def test_the_handlers_need_no_torch() -> None:
    code = "import sys, disttrain.runtime.stop_signals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
