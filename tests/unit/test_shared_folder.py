"""Reads of the shared file system while a run trains: few, and none too late."""

from __future__ import annotations

import os
from pathlib import Path
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


class CountingOs:
    """The module `os`, whose calls to the file system are recorded by name."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("open", "fstat", "stat", "listdir"):
            self.made.append(name)
        return getattr(os, name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to the file system from here on."""
    counting = CountingOs()
    monkeypatch.setattr(shared_folder, "os", counting)
    return counting.made


@pytest.mark.parametrize(
    ("first_s", "age_s", "expected"),
    [(1, 0, 1), (1, 20, 1), (1, 100, 5), (1, 600, 30), (1, 1e6, 30), (60, 0, 60), (60, 1e6, 60), (0, 1e6, 0)],
)
def test_an_interval_grows_with_the_age_of_the_run(first_s: float, age_s: float, expected: float) -> None:
    assert growing_interval(first_s, 30, age_s) == expected


def test_an_unchanged_folder_is_not_listed_again(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "a").touch()
    clock = Clock()
    folder = WatchedFolder(tmp_path, clock)
    for _ in range(4):
        assert folder.names() == ["a"]
        clock.now += 10
    assert calls == [*["open", "fstat", "listdir"] * 2, *["open", "fstat"] * 2]
    (tmp_path / "b").touch()
    assert sorted(folder.names()) == ["a", "b"]


@pytest.fixture
def _constant_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which a new file does not change the state of its folder."""
    state = os.stat_result(range(10))
    monkeypatch.setattr(shared_folder.os, "fstat", lambda folder: state)


@pytest.mark.usefixtures("_constant_state")
def test_a_file_of_the_same_tick_of_the_clock_is_found(tmp_path: Path) -> None:
    clock = Clock()
    folder = WatchedFolder(tmp_path, clock)
    assert folder.names() == []
    (tmp_path / "a").touch()
    clock.now += 1
    assert folder.names() == ["a"]


@pytest.mark.usefixtures("_constant_state")
def test_a_file_from_a_node_with_a_slow_clock_is_found_within_ten_minutes(tmp_path: Path) -> None:
    clock = Clock()
    folder = WatchedFolder(tmp_path, clock)
    for _ in range(3):
        assert folder.names() == []
        clock.now += 10
    (tmp_path / "a").touch()
    assert folder.names() == []
    clock.now += 590
    assert folder.names() == ["a"]


def test_a_folder_that_was_replaced_or_deleted(tmp_path: Path) -> None:
    path, clock = tmp_path / "folder", Clock()
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


def stale(_: int) -> list[str]:
    raise OSError("stale")


def test_a_listing_that_fails_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    folder = WatchedFolder(tmp_path, clock)
    assert folder.names() == []
    clock.now += 10
    (tmp_path / "a").touch()
    with monkeypatch.context() as patch:
        patch.setattr(shared_folder.os, "listdir", stale)
        with pytest.raises(OSError, match="stale"):
            folder.names()
    assert folder.names() == ["a"]


def test_a_newer_attempt_is_found_by_the_next_read(tmp_path: Path, calls: list[str]) -> None:
    run, clock = RunDir(tmp_path), Clock()
    run.attempt(0).path.mkdir(parents=True)
    watch = AttemptWatch(run.attempt(0), clock)
    assert watch.superseded(30) is None
    run.attempt(1).path.mkdir()
    calls.clear()
    clock.now += 29
    assert watch.superseded(30) is None
    assert calls == []
    clock.now += 1
    assert watch.superseded(30) == "attempt 1 of this run has begun"


def test_a_newer_attempt_is_found_before_each_write(tmp_path: Path) -> None:
    run, clock = RunDir(tmp_path), Clock()
    run.attempt(0).path.mkdir(parents=True)
    watch = AttemptWatch(run.attempt(0), clock)
    for _ in range(3):
        assert watch.superseded() is None
        clock.now += 10
    run.attempt(1).path.mkdir()
    assert watch.superseded() == "attempt 1 of this run has begun"


@pytest.mark.parametrize(
    ("age_s", "every_s", "within_s"),
    [
        (0.0, 1.0, 1.5),
        (100.0, 1.0, 6.0),
        (1e6, 1.0, STOP_FOUND_WITHIN_S),
        (1e6, 8.0, STOP_FOUND_WITHIN_S),
        (1e6, 15.0, STOP_FOUND_WITHIN_S),
        (1e6, 60.0, 60.0),
    ],
)
def test_a_stop_file_is_found_in_time(tmp_path: Path, age_s: float, every_s: float, within_s: float) -> None:
    clock = Clock()
    file = StopFile(tmp_path / "STOP", 1.0, clock)
    clock.now += age_s
    for _ in range(2):
        assert not file.exists()
        clock.now += every_s
    assert not file.exists()
    (tmp_path / "STOP").touch()
    began = clock.now
    while not file.exists():
        clock.now += every_s
    assert clock.now - began <= within_s
    (tmp_path / "STOP").unlink()
    assert file.exists()


def test_a_long_run_reads_its_stop_file_rarely(tmp_path: Path, calls: list[str]) -> None:
    clock = Clock()
    file = StopFile(tmp_path / "STOP", 1.0, clock)
    clock.now += 3600
    for _ in range(600):
        clock.now += 1.0
        assert not file.exists()
    assert len(calls) <= 6.5 * 10, "per minute, over ten minutes"


def test_a_stop_file_of_a_run_that_was_moved_away(tmp_path: Path) -> None:
    assert not StopFile(tmp_path / "gone" / "STOP", 0).exists()
