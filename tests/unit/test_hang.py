"""Hung ranks: found by their heartbeats, and the rank that the other ranks wait for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from disttrain.records.heartbeat import Heartbeat, write_heartbeat
from disttrain.records.run_directory import RunDir
from jobs.core.rank_positions import RankPosition, describe_hang, silent_rank
from jobs.node import hang
from jobs.node.hang import HangWatch, memory_folder, overdue
from jobs.status.outcome import warning

BEAT = Heartbeat(
    0, 1, "step", 7, since=100.0, limit_s=60.0, waiting=False, where="a.py:1 in f", written=100.0
)
WAITS = RankPosition(0, "step", 56, 65.0, 60.0, waiting=True, stopped=False, where="trainer.py:9 in backward")
ELSEWHERE = replace(WAITS, rank=3, waiting=False, where="loader.py:57 in __next__")
STOPPED = replace(WAITS, rank=5, stopped=True)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """A hang watch on these heartbeats, of which process `ended` has ended."""

    def __init__(self, folder: Path, *beats: Heartbeat, ended: int | None = None) -> None:
        for beat in beats:
            write_heartbeat(folder, beat)
        self.clock = Clock()
        self.watch = HangWatch(folder, self.clock, alive=lambda pid: pid != ended)

    def after(self, seconds: float, poll_s: float = 1.0) -> list[int]:
        """The ranks that are overdue after so many seconds of polls."""
        until, late = self.clock.now + seconds, []
        while self.clock.now < until:
            self.clock.now += poll_s
            late = [each.rank for each in overdue(self.watch.positions())]
        return late


def test_a_rank_hangs_after_its_limit_and_one_that_waits_for_it_later(tmp_path):
    watch = Watch(tmp_path, BEAT, replace(BEAT, rank=1, waiting=True, written=1e9))
    assert [watch.after(60), watch.after(1), watch.after(14), watch.after(1)] == [[], [0], [0], [0, 1]]


def test_a_rank_without_heartbeats_is_stopped_and_waits_for_no_other(tmp_path):
    watch = Watch(tmp_path, replace(BEAT, waiting=True), replace(BEAT, rank=1, written=1e9))
    assert watch.after(61) == [0, 1]
    assert [each.stopped for each in watch.watch.positions()] == [True, False]


def test_an_ended_process_does_not_hang(tmp_path):
    assert Watch(tmp_path, BEAT, replace(BEAT, rank=1, pid=2), ended=1).after(99) == [1]


def test_a_suspended_job_does_not_hang(tmp_path):
    """Slurm stops the agent and its ranks together, for hours, and continues them."""
    watch = Watch(tmp_path, BEAT)
    assert [watch.after(50), watch.after(7200, poll_s=7200)] == [[], []]
    assert not watch.watch.positions()[0].stopped
    assert [watch.after(60), watch.after(1)] == [[], [0]]


def test_the_warning_names_the_silent_rank_and_its_node_withdraws_it(tmp_path):
    run, watch = RunDir(tmp_path / "sweep" / "run"), Watch(tmp_path, BEAT)
    assert watch.after(31) == []
    late = overdue(watch.watch.positions(), share=0.5)
    waits = replace(late[0], rank=9, waiting=True, stopped=False)
    for node, seen in ((0, [waits]), (1, late), (2, [waits])):
        hang.warn(run.attempt(0), node, seen)
    for node in (0, 2):
        hang.withdraw_warning(run.attempt(0), node)
        assert "rank 0 stopped" in (warning(run, 0) or "")
    hang.withdraw_warning(run.attempt(0), 1)
    assert warning(run, 0) is None


def test_folders_of_killed_agents_are_removed_and_those_of_live_ones_stay(tmp_path, monkeypatch):
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
        with memory_folder() as folder:
            write_heartbeat(folder, BEAT)
            assert set(tmp_path.iterdir()) == {live, folder}
        assert set(tmp_path.iterdir()) == {live} != {dead}
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


@pytest.mark.parametrize(
    ("positions", "silent", "says"),
    [
        ([WAITS, replace(WAITS, rank=1)], None, "all ranks waited for each other in a collective of step 57"),
        ([WAITS, ELSEWHERE], 3, "rank 3 was in step 57 for 65 s, at loader.py:57"),
        ([WAITS, ELSEWHERE, STOPPED], 5, "rank 5 stopped"),
        ([WAITS, replace(WAITS, rank=7, step=55)], 7, "rank 7 was in step 56"),
        ([WAITS, ELSEWHERE, replace(ELSEWHERE, rank=2, step=55)], 2, "rank 2 was in step 56"),
        ([WAITS, ELSEWHERE, replace(ELSEWHERE, rank=2, silent_s=70)], None, "2 ranks were outside of"),
        ([STOPPED, ELSEWHERE, replace(STOPPED, rank=4)], None, "2 ranks stopped"),
        (
            [WAITS, *(replace(WAITS, rank=rank, step=55) for rank in (6, 7))],
            None,
            "2 ranks were in a collective",
        ),
        ([replace(each, phase="checkpoint") for each in (WAITS, ELSEWHERE)], 3, "checkpoint after step 56"),
    ],
)
def test_the_rank_that_the_others_wait_for(positions, silent, says):
    found = silent_rank(positions)
    assert (found and found.rank) == silent
    assert says in describe_hang(positions)


def test_a_node_without_any_sign_is_named_unless_a_rank_is_known_to_hang():
    either = [ELSEWHERE, replace(ELSEWHERE, rank=2)]
    assert describe_hang([WAITS], [2, 1]).startswith("node 1 gave no sign")
    assert describe_hang(either, [1]).startswith("node 1 gave no sign")
    assert describe_hang([WAITS, ELSEWHERE], [2]).startswith("rank 3")
