"""The end of a probe process, as its rank sees it."""

from __future__ import annotations

import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from disttrain.engine import auto_batch
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from tests.support.stopping import alone


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_probe_that_the_oom_killer_ended_is_recorded_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_kernel: bool
) -> None:
    kills = iter([3])
    monkeypatch.setattr(auto_batch, "count_oom_kills", lambda: next(kills, 3 + by_kernel))
    ended = Mock(pid=7, poll=lambda: -signal.SIGKILL)
    monkeypatch.setattr(auto_batch.subprocess, "Popen", lambda *_, **__: ended)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    [end] = auto_batch._run_probes({}, alone(), 60.0)
    assert (end.code, end.killed_for_memory) == (-signal.SIGKILL, by_kernel)
    assert count_killed_probes(tmp_path) == by_kernel
