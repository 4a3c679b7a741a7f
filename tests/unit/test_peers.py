"""Other nodes of a job: their exits, and a newer attempt, as a shared file system shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records import shared_folder
from disttrain.records.run_directory import RunDir
from jobs.node import ending, peers, torchrun
from jobs.node.allocation import jittered


def test_exit_codes_are_names_of_empty_files(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    assert peers.node_exit_codes(attempt) == {}
    attempt.path.mkdir(parents=True)
    for node, code in ((0, 0), (7, 137), (123, 1)):
        peers.record_node_exit(attempt, node, code)
    assert peers.node_exit_codes(attempt) == {0: 0, 7: 137, 123: 1}
    assert sum(path.stat().st_size for path in attempt.exits.iterdir()) == 0
    assert not peers.is_closed(attempt)
    peers.record_closed(attempt)
    assert peers.is_closed(attempt)
    assert peers.node_exit_codes(attempt) == {0: 0, 7: 137, 123: 1}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

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


def test_the_failure_of_another_node_is_seen_within_an_interval(tmp_path: Path) -> None:
    attempt, clock = RunDir(tmp_path).attempt(0), Clock()
    attempt.path.mkdir(parents=True)
    watch = peers.PeerWatch(attempt, 1, 2, clock)
    for node, code in ((0, 0), (1, 1)):
        peers.record_node_exit(attempt, node, code)
    clock.now += 20
    watch.read()
    assert watch.failed is None, "a node that has finished, and this node itself"
    peers.record_node_exit(attempt, 2, 69)
    watch.read()
    assert watch.failed is None
    clock.now += 1.25 * peers.LISTED_EVERY_S
    watch.read()
    assert watch.failed == (2, 69)


def test_node_0_waits_longer_than_another_node_needs_to_end() -> None:
    longest = max(jittered(peers.LISTED_EVERY_S) for _ in range(1000))
    polls = 2 * torchrun._POLL_S
    assert longest + peers.PEER_GRACE_S + polls < peers.NODE_EXITS_TIMEOUT_S
    assert peers.NODE_EXITS_TIMEOUT_S < ending._LATE_RECORD_S
    assert peers.NODE_EXITS_TIMEOUT_S < peers.CLOSED_TIMEOUT_S


def test_a_newer_attempt_is_seen_at_once_after_a_pause_and_at_a_signal(tmp_path: Path) -> None:
    attempt, clock = RunDir(tmp_path).attempt(0), Clock()
    attempt.path.mkdir(parents=True)
    signalled, suspended, other = [peers.PeerWatch(attempt, 0, 2, clock) for _ in range(3)]
    for watch in (signalled, suspended, other):
        watch.read(at_once=True)
        assert not watch.superseded
    RunDir(tmp_path).attempt(1).path.mkdir()
    signalled.read(at_once=True)
    clock.now += 2
    other.read()
    assert (signalled.superseded, other.superseded) == (True, False)
    clock.now += 60
    suspended.read()
    assert suspended.superseded


def test_a_failure_is_seen_although_the_time_of_the_folder_is_cached(
    tmp_path: Path, opened: list[Path]
) -> None:
    attempt, clock = RunDir(tmp_path).attempt(0), Clock()
    attempt.exits.mkdir(parents=True)
    watch = peers.PeerWatch(attempt, 0, 2, clock)
    watch.read(at_once=True)
    (attempt.exits / "node-01.code-1").touch()
    clock.now += 1.25 * peers.LISTED_EVERY_S
    watch.read()
    assert watch.failed == (1, 1)


def test_a_training_node_makes_few_calls(tmp_path: Path, opened: list[Path]) -> None:
    attempt, clock = RunDir(tmp_path).attempt(0), Clock()
    attempt.exits.mkdir(parents=True)
    watch = peers.PeerWatch(attempt, 0, 2, clock)
    for _ in range(600):
        clock.now += 1
        watch.read()
    assert 2 * len(opened) < 10 * 10, "per minute, over ten minutes: an open and its fstat"
    assert set(opened) == {attempt.exits, attempt.path.parent}


def test_the_only_node_of_a_job_reads_no_exits_of_others(tmp_path: Path, opened: list[Path]) -> None:
    attempt, clock = RunDir(tmp_path).attempt(0), Clock()
    attempt.exits.mkdir(parents=True)
    watch = peers.PeerWatch(attempt, 0, 1, clock)
    for _ in range(600):
        clock.now += 1
        watch.read()
    assert set(opened) == {attempt.path.parent}
    assert len(opened) <= 10
    RunDir(tmp_path).attempt(1).path.mkdir()
    watch.read(at_once=True)
    assert watch.superseded


def test_a_file_system_that_does_not_answer_ends_nothing_and_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    attempt.exits.mkdir(parents=True)
    watch = peers.PeerWatch(attempt, 0, 2)
    peers.record_node_exit(attempt, 1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(peers.os, "listdir", Mock(side_effect=OSError(116, "Stale file handle")))
        watch.read(at_once=True)
        assert (watch.failed, watch.superseded) == (None, False)
    watch.read(at_once=True)
    assert watch.failed == (1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(peers.os, "listdir", Mock(side_effect=OSError(116, "Stale file handle")))
        watch.read(at_once=True)
    assert watch.failed == (1, 1), "it was seen before"
