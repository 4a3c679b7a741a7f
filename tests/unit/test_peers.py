"""Other nodes of a job as a shared file system shows them: exits, newer attempts, and stops of a command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records import shared_folder
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core.processes import children_of, handles
from jobs.node import ending, peers, torchrun
from jobs.node.allocation import NodeContext, jittered
from jobs.node.command_stop import CommandStop, is_rank
from jobs.node.peers import LISTED_EVERY_S, PeerWatch
from tests.support.jobs import wait_until

WAITS = "while :; do sleep 0.01; done"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = RunDir(tmp_path).attempt(0)
    made.exits.mkdir(parents=True)
    return made


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every folder that is opened from here on. A shared file system that answers `stat` from a cache."""
    seen: list[Path] = []
    real, cached = os.open, os.stat_result([0] * 10)

    def open_folder(path: Path, *arguments: Any, **named: Any) -> int:
        seen.append(path)
        return real(path, *arguments, **named)

    monkeypatch.setattr(shared_folder.os, "open", open_folder)
    monkeypatch.setattr(shared_folder.os, "stat", lambda path, **names: cached)
    return seen


def test_exit_codes_are_names_of_empty_files(attempt):
    codes = {0: 0, 7: 137, 123: 1}
    for node, code in codes.items():
        peers.record_node_exit(attempt, node, code)
    assert not peers.is_closed(attempt)
    peers.record_closed(attempt)
    assert (peers.is_closed(attempt), peers.node_exit_codes(attempt)) == (True, codes)
    assert sum(path.stat().st_size for path in attempt.exits.iterdir()) == 0


def test_nothing_is_written_for_another_run_at_the_same_path(tmp_path):
    attempt = RunDir(tmp_path).identified(create=True).attempt(0)
    attempt.path.mkdir()
    (tmp_path / "attempts" / str(attempt.directory_id)).unlink()
    peers.record_node_exit(attempt, 0, 0)
    peers.record(attempt, attempt.stop, {"cause": "x"})
    assert [*attempt.path.iterdir()] == []


def test_the_first_record_of_an_end_stays(attempt):
    for cause in ("deadline", "preempted"):
        peers.record(attempt, attempt.stop, {"cause": cause})
    assert "deadline" in attempt.stop.read_text()
    peers.record(attempt, attempt.path / "missing" / "x.json", {})  # as on a full disk


def test_the_failure_of_another_node_is_seen_within_an_interval(attempt, opened):
    """Although the file system answers with a cached time of the folder."""
    clock = Clock()
    watch = PeerWatch(attempt, 1, 3, clock)
    for name in ("node-00.code-0", "node-01.code-1"):  # a node that has finished, and this node itself
        (attempt.exits / name).touch()
    clock.now += 1.25 * LISTED_EVERY_S
    watch.read()
    (attempt.exits / "node-02.code-69").touch()
    watch.read()
    assert watch.failed is None, "it is not time to read"
    clock.now += 1.25 * LISTED_EVERY_S
    watch.read()
    assert watch.failed == (2, 69)


@pytest.mark.parametrize(("nodes", "most"), [(2, 50), (1, 10)])
def test_a_training_node_opens_few_folders(nodes, most, attempt, opened):
    """Over ten minutes. The only node of a job reads no exits of others."""
    clock = Clock()
    watch = PeerWatch(attempt, 0, nodes, clock)
    for _ in range(600):
        clock.now += 1
        watch.read()
    assert {*opened} == {attempt.path.parent, *([attempt.exits] if nodes > 1 else [])}
    assert len(opened) < most


def test_node_0_waits_longer_than_another_node_needs_to_end():
    longest = max(jittered(LISTED_EVERY_S) for _ in range(1000))
    assert longest + peers.PEER_GRACE_S + 2 * torchrun._POLL_S < peers.NODE_EXITS_TIMEOUT_S
    assert min(ending._LATE_RECORD_S, peers.CLOSED_TIMEOUT_S) > peers.NODE_EXITS_TIMEOUT_S


def test_a_newer_attempt_is_seen_at_once_after_a_pause_and_at_a_signal(attempt):
    clock = Clock()
    signalled, suspended, training = [PeerWatch(attempt, 0, 2, clock) for _ in range(3)]
    for watch in (signalled, suspended, training):
        watch.read(at_once=True)
    attempt.path.with_name("001").mkdir()
    signalled.read(at_once=True)
    clock.now += 2
    training.read()
    assert (signalled.superseded, suspended.superseded, training.superseded) == (True, False, False)
    clock.now += 60
    suspended.read()
    assert suspended.superseded


def test_a_file_system_that_does_not_answer_ends_nothing_and_hides_no_failure(attempt, monkeypatch):
    watch = PeerWatch(attempt, 0, 2)
    peers.record_node_exit(attempt, 1, 1)
    for answers, failed in ((False, None), (True, (1, 1)), (False, (1, 1))):
        with monkeypatch.context() as patch:
            if not answers:
                patch.setattr(os, "listdir", Mock(side_effect=OSError(116, "Stale file handle")))
            watch.read(at_once=True)
        assert (watch.failed, watch.superseded) == (failed, False)


def stop_of(attempt: Attempt, node: int = 0, nodes: int = 2, *, in_s: float = 100.0) -> CommandStop:
    """The stop of a command on a node, whose time ends in so many seconds."""
    run = RunDir(attempt.path.parent.parent)
    context = NodeContext(run, 0, node, ["n0", "n1"][:nodes], None)
    end = time.time() + in_s
    return CommandStop(context, attempt, signal.SIGTERM, end)


def recorded(attempt: Attempt) -> tuple[str, float] | None:
    """The stop that node 1 reads."""
    watch = PeerWatch(attempt, 1, 2)
    watch.read(at_once=True)
    return watch.stop


def test_the_time_limit_is_a_stop_of_its_own_that_all_nodes_know(attempt):
    assert stop_of(attempt).requested(None) is None
    due = stop_of(attempt, in_s=0.0)
    assert due.requested(None) == ("time limit", "deadline")
    assert stop_of(attempt, in_s=0.5).wait_s(1.0) <= 0.5
    due.begin("deadline")
    assert (due.requested(None), due.wait_s(1.0), recorded(attempt)) == (None, 1.0, None)


def test_a_stop_by_the_user_is_at_the_same_time_on_all_nodes(attempt, monkeypatch):
    RunDir(attempt.path.parent.parent).stop.touch()
    first, other = stop_of(attempt), stop_of(attempt, 1)
    assert (other.requested(None), recorded(attempt)) == (None, None), "only node 0 looks"
    assert first.requested(None) is None
    by_peers = recorded(attempt)
    assert by_peers is not None
    assert (by_peers[0], by_peers[1] - time.time() >= LISTED_EVERY_S) == ("stopped", True)
    assert other.requested(by_peers) is None
    monkeypatch.setattr(time, "time", lambda: by_peers[1])
    assert first.requested(None) == other.requested(by_peers) == ("a request to stop", "stopped")


def test_a_stop_by_the_user_shortly_before_the_time_limit_is_that_of_the_limit(attempt):
    RunDir(attempt.path.parent.parent).stop.touch()
    stop = stop_of(attempt, in_s=10.0)
    assert (stop.requested(None), recorded(attempt)) == (None, None)
    assert stop.wait_s(60.0) <= 10.0


def test_the_only_node_stops_within_a_second(attempt):
    RunDir(attempt.path.parent.parent).stop.touch()
    stop = stop_of(attempt, nodes=1)
    assert stop.requested(None) in (None, ("a request to stop", "stopped"))
    assert stop.wait_s(60.0) <= 1.0


def test_the_other_nodes_follow_the_first_one_that_was_warned(attempt):
    peers.record_stop(attempt, "stopped", int(time.time()) + 50)
    warned = stop_of(attempt)
    warned.begin("preempted")
    assert warned.requested(None) is None
    assert stop_of(attempt, 1).requested(recorded(attempt)) == ("a request to stop", "preempted")


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.parametrize(
    ("lines", "printed"),
    [
        ("sleep 600; echo one; sleep 600; echo two", "one\ntwo\n"),
        (f"""sh -c 'trap "exit 0" TERM; {WAITS}' && sleep 0.3 && echo left""", "left\n"),
        (f"""sleep 600; sh -c 'trap "exit 0" TERM; {WAITS}' && sleep 0.3 && echo left""", "left\n"),
    ],
    ids=["no handler", "training", "preparation"],
)
def test_a_stop_reaches_a_shell_script_up_to_a_program_that_handles_it(lines, printed, attempt):
    stop = stop_of(attempt)
    with subprocess.Popen(["bash", "-c", lines], stdout=subprocess.PIPE, text=True) as shell:
        first = lines.split()[0]
        wait_until(lambda: [name_of(pid) for pid in children_of(shell.pid)] == [first])
        wait_until(lambda: first == "sleep" or handles(children_of(shell.pid)[0], signal.SIGTERM))
        stop.signal_processes([shell.pid])  # nothing before the stop
        stop.begin("preempted")
        wait_until(lambda: stop.signal_processes([shell.pid]) or shell.poll() is not None)
        assert shell.communicate() == (printed, None)


def test_a_launcher_whose_rank_was_stopped_is_left_to_end(attempt, tmp_path):
    stop, go = stop_of(attempt), tmp_path / "go"
    then = f"trap 'exit 9' TERM; echo ready; until [ -e {shlex.quote(str(go))} ]; do sleep 0.05; done"
    words = ["sh", "-c", f"LOCAL_RANK=0 sleep 600; {then}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        wait_until(lambda: any(map(is_rank, children_of(launcher.pid))))
        stop.begin("preempted")
        stop.signal_processes([launcher.pid])
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        stop.signal_processes([launcher.pid])
        go.touch()
        assert launcher.wait() == 0
