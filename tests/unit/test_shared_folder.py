"""Reads of the shared file system while a run trains: few, and none too late."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from disttrain.records import shared_folder
from disttrain.records.run_directory import RunDir
from disttrain.records.shared_folder import (
    STOP_FOUND_WITHIN_S,
    AttemptWatch,
    StopFile,
    WatchedFolder,
    growing_interval,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RecordedOs:
    """The module `os`: its calls to the file system are recorded by name, and may be replaced."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.replaced: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("open", "fstat", "stat", "listdir"):
            self.calls.append(name)
        return self.replaced.get(name, getattr(os, name))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedOs:
    recorded = RecordedOs()
    monkeypatch.setattr(shared_folder, "os", recorded)
    return recorded


@pytest.mark.parametrize(
    ("first_s", "age_s", "expected"),
    [(1, 20, 1), (1, 100, 5), (1, 600, 30), (1, 1e6, 30), (60, 0, 60), (60, 1e6, 60), (0, 1e6, 0)],
)
def test_an_interval_grows_with_the_age_of_the_run(first_s, age_s, expected):
    assert growing_interval(first_s, 30, age_s) == expected


def test_an_unchanged_folder_is_not_listed_again(tmp_path, clock, recorded):
    (tmp_path / "a").touch()
    folder = WatchedFolder(tmp_path, clock)
    for _ in range(4):
        assert folder.names() == ["a"]
        clock.now += 10
    assert recorded.calls == [*["open", "fstat", "listdir"] * 2, *["open", "fstat"] * 2]
    (tmp_path / "b").touch()
    assert sorted(folder.names()) == ["a", "b"]


@pytest.mark.parametrize(("reads", "found_s"), [(1, 1), (3, 600)], ids=["the same tick", "a slow clock"])
def test_a_file_that_leaves_the_times_of_its_folder_is_found(tmp_path, clock, recorded, reads, found_s):
    """In the same tick of the server's clock soon, from a node with a slow clock within ten minutes."""
    recorded.replaced["fstat"] = lambda folder: os.stat_result(range(10))
    folder = WatchedFolder(tmp_path, clock)
    for _ in range(reads):
        assert folder.names() == []
        clock.now += 10 if reads > 1 else 0
    (tmp_path / "a").touch()
    assert folder.names() == ([] if reads > 1 else ["a"])
    clock.now += found_s
    assert folder.names() == ["a"]


def test_a_folder_that_was_replaced_or_deleted(tmp_path, clock):
    path = tmp_path / "folder"
    folder = WatchedFolder(path, clock)
    assert folder.names() == []
    for name in ("a", "b"):
        path.mkdir()
        (path / name).touch()
        os.utime(path, (5, 5))
        for _ in range(3):
            clock.now += 10
            assert folder.names() == [name]
        path.rename(tmp_path / f"moved-{name}")
        assert folder.names() == []


def test_a_listing_that_fails_hides_nothing(tmp_path, clock, recorded):
    def stale(_: int) -> list[str]:
        raise OSError("stale")

    folder = WatchedFolder(tmp_path, clock)
    assert folder.names() == []
    clock.now += 10
    (tmp_path / "a").touch()
    recorded.replaced["listdir"] = stale
    with pytest.raises(OSError, match="stale"):
        folder.names()
    recorded.replaced.clear()
    assert folder.names() == ["a"]


@pytest.mark.parametrize("max_age_s", [0, 30])
def test_a_newer_attempt_is_found_by_the_next_read(tmp_path, clock, recorded, max_age_s):
    run = RunDir(tmp_path)
    run.attempt(0).path.mkdir(parents=True)
    watch = AttemptWatch(run.attempt(0), clock)
    for _ in range(3):
        assert watch.superseded(max_age_s) is None
        clock.now += max_age_s
    assert watch.superseded(max_age_s) is None
    run.attempt(1).path.mkdir()
    if max_age_s:
        recorded.calls.clear()
        clock.now += max_age_s - 1
        assert watch.superseded(max_age_s) is None
        assert recorded.calls == []
        clock.now += 1
    assert watch.superseded(max_age_s) == "attempt 1 of this run has begun"


@pytest.mark.parametrize(
    ("age_s", "every_s", "within_s"),
    [
        (0, 1, 1.5),
        (100, 1, 6),
        (1e6, 1, STOP_FOUND_WITHIN_S),
        (1e6, 8, STOP_FOUND_WITHIN_S),
        (1e6, 15, STOP_FOUND_WITHIN_S),
        (1e6, 60, 60),
    ],
)
def test_a_stop_file_is_found_in_time_and_counts_from_then_on(tmp_path, clock, age_s, every_s, within_s):
    file = StopFile(tmp_path / "STOP", 1.0, clock)
    clock.now += age_s
    for _ in range(3):
        assert not file.exists()
        clock.now += every_s
    (tmp_path / "STOP").touch()
    began = clock.now - every_s
    while not file.exists():
        clock.now += every_s
    assert clock.now - began <= within_s
    (tmp_path / "STOP").unlink()
    assert file.exists()


def test_a_long_run_reads_its_stop_file_rarely(tmp_path, clock, recorded):
    file = StopFile(tmp_path / "STOP", 1.0, clock)
    clock.now += 3600
    for _ in range(600):
        clock.now += 1.0
        assert not file.exists()
    assert len(recorded.calls) <= 6.5 * 10, "per minute, over ten minutes"


def test_a_stop_file_of_a_run_that_was_moved_away(tmp_path):
    assert not StopFile(tmp_path / "gone" / "STOP", 0).exists()
