"""When the processes of a `command` get their stop signal."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from disttrain.records.run_directory import Attempt, RunDir
from jobs.node import peers, torchrun
from jobs.node.allocation import NodeContext
from jobs.node.peers import PeerWatch
from jobs.node.torchrun import CommandStop, Torchrun


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = RunDir(tmp_path / "s" / "r").attempt(0)
    made.exits.mkdir(parents=True)
    return made


def stop_of(attempt: Attempt, node: int = 0, nodes: int = 2, *, in_s: float = 100.0) -> CommandStop:
    context = NodeContext(RunDir(attempt.path.parent.parent), 0, node, ["n0", "n1"][:nodes], None)
    end = time.time() + in_s
    return CommandStop(Torchrun(context, attempt, [], {}, end, 0.0, attempt.path, signal.SIGTERM))


def recorded(attempt: Attempt, node: int) -> tuple[str, float] | None:
    watch = PeerWatch(attempt, node, 2)
    watch.read(at_once=True)
    return watch.stop


def test_the_time_limit_is_a_stop_of_its_own(attempt: Attempt) -> None:
    assert stop_of(attempt).requested(None) is None
    assert stop_of(attempt, in_s=0.0).requested(None) == ("time limit", "deadline")
    assert stop_of(attempt, in_s=0.5).wait_s(1.0) <= 0.5
    assert recorded(attempt, 1) is None


def test_a_stop_by_the_user_is_at_the_same_time_on_all_nodes(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunDir(attempt.path.parent.parent).stop.touch()
    first, other = stop_of(attempt), stop_of(attempt, 1)
    assert first.requested(None) is None
    assert other.requested(None) is None  # only node 0 looks
    by_peers = recorded(attempt, 1)
    assert by_peers is not None
    assert by_peers[0] == "stopped"
    assert by_peers[1] - time.time() >= peers.LISTED_EVERY_S
    assert other.requested(by_peers) is None
    monkeypatch.setattr(torchrun.time, "time", lambda: by_peers[1])
    assert first.requested(None) == other.requested(by_peers) == ("a request to stop", "stopped")


def test_one_node_stops_at_once(attempt: Attempt) -> None:
    RunDir(attempt.path.parent.parent).stop.touch()
    stop = stop_of(attempt, nodes=1)
    deadline = time.monotonic() + 5
    while (found := stop.requested(None)) is None and time.monotonic() < deadline:
        time.sleep(0.05)  # its time is a whole second
    assert found == ("a request to stop", "stopped")


def test_the_other_nodes_follow_one_that_was_warned(attempt: Attempt) -> None:
    warned = stop_of(attempt)
    warned.begin("preempted")
    assert warned.requested(None) is None
    assert stop_of(attempt, 1).requested(recorded(attempt, 1)) == ("a request to stop", "preempted")
