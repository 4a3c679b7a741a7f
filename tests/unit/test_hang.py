"""Hung ranks, from their heartbeats."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from disttrain.records.heartbeat import Heartbeat, write_heartbeat
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.node import hang
from jobs.node.hang import HangWatch, memory_folder, overdue
from jobs.status.outcome import warning

BEAT = Heartbeat(
    0, 1, "step", 7, since=100.0, limit_s=60.0, waiting=False, where="a.py:1 in f", written=100.0
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched(folder: Path, clock: Clock, *beats: Heartbeat, ended: int | None = None) -> HangWatch:
    for beat in beats:
        write_heartbeat(folder, beat)
    return HangWatch(folder, clock, alive=lambda pid: pid != ended)


def after(watch: HangWatch, clock: Clock, seconds: float, poll_s: float = 1.0) -> list[int]:
    """The ranks that are overdue after so many seconds of polls."""
    until, late = clock.now + seconds, []
    while clock.now < until:
        clock.now += poll_s
        late = [each.rank for each in overdue(watch.positions())]
    return late


def test_a_rank_hangs_after_its_limit_and_one_that_waits_for_it_later(tmp_path: Path) -> None:
    clock = Clock()
    watch = watched(tmp_path, clock, BEAT, replace(BEAT, rank=1, waiting=True, written=1e9))
    assert after(watch, clock, 60) == []
    assert after(watch, clock, 1) == [0]
    assert after(watch, clock, 14) == [0]
    assert after(watch, clock, 1) == [0, 1]


def test_a_rank_without_heartbeats_is_stopped(tmp_path: Path) -> None:
    clock = Clock()
    watch = watched(tmp_path, clock, replace(BEAT, waiting=True), replace(BEAT, rank=1, written=1e9))
    assert after(watch, clock, 61) == [0, 1]
    assert [each.stopped for each in watch.positions()] == [True, False]


def test_an_ended_process_does_not_hang(tmp_path: Path) -> None:
    clock = Clock()
    watch = watched(tmp_path, clock, BEAT, replace(BEAT, rank=1, pid=2), ended=1)
    assert after(watch, clock, 99) == [1]


def test_a_suspended_job_does_not_hang(tmp_path: Path) -> None:
    """Slurm stops the agent and its ranks together, for hours, and continues them."""
    clock = Clock()
    watch = watched(tmp_path, clock, BEAT)
    assert after(watch, clock, 50) == []
    assert after(watch, clock, 7200, poll_s=7200) == []
    assert after(watch, clock, 60) == []
    assert not watch.positions()[0].waits_for_others
    assert after(watch, clock, 1) == [0]


def test_the_warning_names_the_silent_rank_and_its_node_withdraws_it(tmp_path: Path) -> None:
    run, clock = RunDir(tmp_path / "sweep" / "run"), Clock()
    attempt = run.attempt(0)
    watch = watched(tmp_path, clock, BEAT)
    assert after(watch, clock, 31) == []
    late = overdue(watch.positions(), share=0.5)
    waits = replace(late[0], rank=9, waiting=True, stopped=False)
    for node, seen in ((0, [waits]), (1, late), (2, [waits])):
        hang.warn(attempt, node, seen)
    for node in (0, 2):
        hang.withdraw_warning(attempt, node)
        assert warning(run, 0) == "no progress: rank 0 stopped: no heartbeat for 31 s, in step 8"
    hang.withdraw_warning(attempt, 1)
    assert warning(run, 0) is None


def test_the_folder_is_gone_afterwards() -> None:
    with memory_folder() as folder:
        write_heartbeat(folder, BEAT)
    assert not folder.exists()


def test_folders_of_killed_agents_are_removed_and_those_of_live_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang, "_MEMORY", tmp_path)
    program = (
        "import sys; from pathlib import Path; from jobs.node import hang\n"
        "hang._MEMORY = Path(sys.argv[1])\n"
        "with hang.memory_folder() as folder: print(folder, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    agents = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        dead, live = (Path(agent.stdout.readline().decode().strip()) for agent in agents if agent.stdout)
        agents[0].kill()
        agents[0].wait()
        older = tmp_path / "disttrain-made-by-older-code"
        older.mkdir()
        with memory_folder() as folder:
            assert set(tmp_path.iterdir()) == {live, folder, older}
            assert dead != live
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


@pytest.mark.parametrize("hung", [True, False])
def test_the_record_of_positions_can_be_read_back(tmp_path: Path, hung: bool) -> None:
    (position,) = watched(tmp_path, Clock(), BEAT).positions()
    write_json(tmp_path / "ranks.json", hang.positions_record([position], hung))
    record = read_json(tmp_path / "ranks.json")
    assert record["hung"] == hung
    assert hang.RankPosition(**record["ranks"][0]) == position
