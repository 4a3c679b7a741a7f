"""The end of a probe process, as its rank sees it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from disttrain.engine import batch_search
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from tests.support.stopping import alone


class Probe:
    """A probe process that has ended with `ends`."""

    pid, trying, fit, refused, answered_at = 7, 4, None, None, float("inf")
    ends, by_kernel = 0, False

    def __init__(self, request: object, number: str) -> None: ...

    def code(self) -> int:
        return self.ends

    def oom_killed(self) -> bool:
        return self.by_kernel

    def kill(self) -> None: ...


@pytest.mark.parametrize(
    ("code", "by_kernel", "recorded"),
    [(-signal.SIGKILL, True, 1), (-signal.SIGKILL, False, 0)],
)
def test_a_probe_that_the_oom_killer_ended_is_recorded_for_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, by_kernel: bool, recorded: int
) -> None:
    monkeypatch.setattr(batch_search, "_ProbeProcess", Probe)
    monkeypatch.setattr(Probe, "ends", code)
    monkeypatch.setattr(Probe, "by_kernel", by_kernel)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    [outcome] = batch_search._run_probes({}, alone(), "1-0", 60.0)
    assert (outcome.code, outcome.trying) == (code, 4)
    assert count_killed_probes(tmp_path) == recorded
