"""Processes that the OOM killer ended while torchrun ran: probes of batch sizes do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.heartbeat import count_killed_probes, record_killed_probe
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.node import launch


@pytest.mark.parametrize(
    ("before", "after", "probes", "recorded"),
    [
        (2, 2, 0, None),
        (2, 3, 0, 1),
        (2, 3, 1, None),
        (2, 5, 2, 1),
        (2, 3, 2, None),  # something else sent SIGKILL to a probe
        (None, 3, 0, None),
        (2, None, 0, None),
    ],
)
def test_kills_of_probes_are_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int | None,
    after: int | None,
    probes: int,
    recorded: int | None,
) -> None:
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    node = tmp_path / "node"
    node.mkdir()
    for pid in range(probes):
        record_killed_probe(node, pid)
    monkeypatch.setattr(launch.cgroup, "oom_kills", lambda: after)
    launch._record_oom_kills(attempt, 0, before, count_killed_probes(node))
    path = attempt.node_oom(0)
    assert (read_json(path)["kills"] if path.exists() else None) == recorded
