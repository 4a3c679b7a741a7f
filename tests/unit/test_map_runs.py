"""Runs read in threads or in processes: the same results in the same order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from analysis.read import map_runs
from analysis.read.frames import load
from analysis.step_statistics import step_statistics
from tests.support.fake_runs import fake_sweep


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_runs, "MANY_RECORDS", 0)
    monkeypatch.setattr(map_runs, "_CHUNK", 2)
    monkeypatch.setattr(map_runs, "sched_getaffinity", lambda _: {0, 1})


def test_processes_return_what_threads_return(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    runs = load([fake_sweep(tmp_path, repeats=1, all_ranks=True), fake_sweep(tmp_path, "other", repeats=2)])
    statistics = step_statistics(runs)
    request.getfixturevalue("in_processes")
    assert step_statistics(runs) == statistics


@pytest.mark.usefixtures("in_processes")
def test_small_results_of_many_records_come_from_other_processes(tmp_path: Path) -> None:
    runs = load([fake_sweep(tmp_path, repeats=1)])
    both = [
        list(map_runs.map_runs(lambda _: os.getpid(), runs, small_results=small)) for small in (True, False)
    ]
    assert os.getpid() not in both[0]
    assert set(both[1]) == {os.getpid()}


@pytest.mark.usefixtures("in_processes")
def test_an_error_in_a_process_is_raised(tmp_path: Path) -> None:
    runs = load([fake_sweep(tmp_path, repeats=1)])
    with pytest.raises(ZeroDivisionError):
        list(map_runs.map_runs(lambda _: 1 / 0, runs, small_results=True))


@pytest.mark.usefixtures("in_processes")
def test_statistics_of_many_records_come_from_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, parent = load([fake_sweep(tmp_path, repeats=1)]), os.getpid()
    monkeypatch.setattr(
        "analysis.step_statistics.measured_step_s", lambda _: np.ones(20 + (os.getpid() == parent))
    )
    assert {each.measured_steps for each in step_statistics(runs).values()} == {20}
