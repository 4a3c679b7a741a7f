"""The end of a probe process, as its rank sees it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from disttrain.engine import auto_batch
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from tests.support.stopping import alone, config


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_probe_that_the_oom_killer_ended_is_recorded_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_kernel: bool
) -> None:
    kills = iter([3])
    monkeypatch.setattr(auto_batch, "count_oom_kills", lambda: next(kills, 3 + by_kernel))
    ended = Mock(pid=7, poll=lambda: -signal.SIGKILL)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: ended)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    [end] = auto_batch._run_probes(config(), [], alone())
    assert (end.code, end.out_of_memory) == (-signal.SIGKILL, by_kernel)
    assert count_killed_probes(tmp_path) == by_kernel


def test_a_silent_probe_ends_after_the_time_of_the_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    message = (
        "rank 0: the probe of 0 samples gave no answer within job.setup_timeout_s; set train.local_batch"
    )
    with pytest.raises(RuntimeError, match=message):
        auto_batch.search_batch_size(config(job={"setup_timeout_s": 0.1}), alone())
    assert process.poll() == -signal.SIGALRM
