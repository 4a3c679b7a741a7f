"""Stop requests of a run, and which cause wins."""

import os
import signal
import subprocess
import sys
import time

import pytest

from disttrain.config.stop_time import lead_within, stop_time
from disttrain.runtime.stop_signals import CAUSES, SIGNALS, StopRequests, StopSignals


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
def test_the_time_limit_leaves_a_lead(environment, expected):
    assert stop_time(environment, lead_s=60, now=1000.0) == expected


@pytest.mark.parametrize(("left_s", "expected"), [(600, 60), (60, 15), (40, 10), (-5, 0)])
def test_a_short_job_has_a_short_lead(left_s, expected):
    assert lead_within(left_s, 60) == expected


@pytest.mark.parametrize(
    ("left_s", "agent", "sent", "stop", "cause"),
    [
        (3600, None, False, False, None),
        (None, None, True, False, "preempted"),
        (None, '{"cause": "deadline"}', False, False, "deadline"),
        (None, '{"cause": "deadline"}', True, False, "deadline"),
        (None, "", False, False, "preempted"),  # a file system may show a file before its content
        (None, '{"cause": "other"}', False, False, "preempted"),
        (-1, '{"cause": "preempted"}', True, False, "deadline"),
        (-1, '{"cause": "preempted"}', True, True, "stopped"),
    ],
)
def test_the_strongest_request_names_the_cause(tmp_path, monkeypatch, left_s, agent, sent, stop, cause):
    signals, file = StopSignals(), tmp_path / "stop.json"
    for name in ("DISTTRAIN_DEADLINE", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    if left_s is not None:
        monkeypatch.setenv("DISTTRAIN_DEADLINE", str(time.time() + left_s))
    requests = StopRequests(tmp_path / "STOP", file, signals, 60, 0)
    ignorant = StopRequests(None, None, StopSignals(), 60, 0)
    if agent is not None:
        file.write_text(agent)
    if sent:
        signals.record(signal.SIGTERM)
    if stop:
        (tmp_path / "STOP").touch()
    assert requests.pending() == (1 + CAUSES.index(cause) if cause else 0)
    assert ignorant.pending() == (1 + CAUSES.index("deadline") if left_s == -1 else 0)


def test_in_a_job_only_the_signal_of_torchrun_counts():
    signals = StopSignals()
    signals.record(signal.SIGUSR2)  # before it is known whether this is a job's rank
    assert signals.received
    signals.counted = (signal.SIGTERM,)
    assert not signals.received
    signals.record(signal.SIGTERM)
    assert signals.received


def test_a_signal_is_recorded_and_does_not_end_the_process():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number in SIGNALS:
            signals = StopSignals()
            signals.install()
            os.kill(os.getpid(), number)
            assert signals.received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_handlers_need_no_torch():
    code = "import sys, disttrain.runtime.stop_signals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
