"""Ranks of a command that hang, seen from outside: silence, idleness and stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from disttrain.records.run_directory import RunDir
from jobs.core.environment import TRACE_PIPES
from jobs.core.processes import children_of, is_running
from jobs.core.rank_positions import SCRIPT, RankPosition, describe_hang, silent_rank
from jobs.node import rank_stacks, silent_ranks
from jobs.node.hang import overdue
from jobs.node.rank_stacks import Stack, main_thread, save_stacks, with_stacks
from jobs.node.silent_ranks import RankProcess, SilentRanks, rank_processes, work_of
from tests.support.jobs import wait_until

IDLE = RankPosition(0, SCRIPT, 0, 90.0, 60.0, waiting=False, stopped=False, where="train.py:9 in load")
LIMIT_S = 100.0


class Machine:
    """One rank whose activity the test sets; `after` gives the ranks that are overdue."""

    def __init__(self, tmp_path, monkeypatch, pid):
        self.rank, self.log = RankProcess(3, pid), tmp_path / "log"
        self.run = RunDir(tmp_path / "s" / "r")
        self.attempt = self.run.attempt(0)
        self.attempt.path.mkdir(parents=True)
        self.run.checkpoints.mkdir()
        self.now, self.work, self.kernels = 0.0, (0.0, 0), {3: 0.0}
        monkeypatch.setattr(silent_ranks, "work_of", lambda pid: self.work)
        self.watch = SilentRanks(self.run, self.attempt, LIMIT_S, lambda: self.kernels, now=lambda: self.now)

    def after(self, seconds, poll_s=1.0, each=lambda: None):
        until, positions = self.now + seconds, []
        while self.now < until:
            self.now += poll_s
            each()
            positions = self.watch.positions([self.rank])
        return positions


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with (tmp_path / "log").open("w") as log, subprocess.Popen(["sleep", "600"], stdout=log) as process:
        yield Machine(tmp_path, monkeypatch, process.pid)
        process.kill()


def prints(machine):
    with machine.log.open("a") as log:
        log.write("x\n")


def records_steps(machine):
    machine.attempt.steps(3).write_text(str(machine.now))


def saves(machine):
    (machine.run.checkpoints / f"{machine.now}.pt").touch()


def touches_saved(machine):
    os.utime(machine.run.checkpoints, (1, 1))
    (machine.run.checkpoints / "saved").touch()
    os.utime(machine.run.checkpoints / "saved", (machine.now, machine.now))
    os.utime(machine.run.checkpoints, (1, 1))


def reports(machine):
    machine.run.metrics.write_text(f'{{"loss": {machine.now}}}')


def computes(machine):
    machine.kernels = {3: machine.kernels[3] + 0.01}


def another_works(machine):
    machine.attempt.rank_works.touch()
    os.utime(machine.attempt.rank_works, (machine.now, machine.now))


def works(machine):
    machine.work = (machine.work[0] + 0.2, machine.work[1])


def writes_a_checkpoint(machine):
    machine.work = (machine.work[0], machine.work[1] + 2_000_000)


def rests(machine):
    machine.work = (machine.work[0] + 0.05, machine.work[1] + 10_000)


ACTIVE = (
    prints,
    records_steps,
    saves,
    touches_saved,
    reports,
    computes,
    another_works,
    works,
    writes_a_checkpoint,
)


def test_a_silent_and_idle_rank_hangs_after_its_limit(machine):
    assert overdue(machine.after(LIMIT_S, each=lambda: rests(machine))) == []
    [late] = overdue(machine.after(10, each=lambda: rests(machine)))
    assert (late.rank, late.phase, late.limit_s) == (3, SCRIPT, LIMIT_S)


@pytest.mark.parametrize("act", ACTIVE)
def test_a_sign_of_life_begins_the_limit_anew(machine, act):
    machine.after(90)
    machine.after(10, each=lambda: act(machine))
    assert overdue(machine.after(95)) == []
    assert overdue(machine.after(15))


def test_a_rank_whose_gpu_computes_waits_for_others(machine):
    assert machine.after(20, each=lambda: computes(machine))[0].waiting
    assert not machine.after(20)[0].waiting


def computes_and_prints(machine):
    computes(machine)
    prints(machine)


@pytest.mark.parametrize("act", [prints, computes_and_prints, works, computes, rests])
def test_the_agents_of_all_nodes_see_that_a_rank_prints_or_works_without_a_kernel(machine, act):
    machine.after(20)
    machine.after(10, each=lambda: act(machine))
    assert machine.attempt.rank_works.exists() == (act not in (computes, rests))


def test_a_suspended_job_does_not_hang_and_a_stopped_rank_is_named(machine):
    machine.after(90)
    assert overdue(machine.after(7200, poll_s=3600)) == []
    os.kill(machine.rank.pid, signal.SIGSTOP)
    [stopped] = overdue(machine.after(110))
    assert (
        describe_hang([stopped]) == f"rank 3 stopped: no output for {stopped.silent_s:.0f} s, in the script"
    )


COLLECTIVE = replace(IDLE, rank=1, waiting=True, where="train.py:30 in step")


@pytest.mark.parametrize(
    ("positions", "rank", "message"),
    [
        ([COLLECTIVE, IDLE], 0, "rank 0 was silent and idle for 90 s, at train.py:9 in load"),
        ([COLLECTIVE, replace(IDLE, where="")], 0, "rank 0 was silent and idle for 90 s"),
        (
            [IDLE, replace(IDLE, rank=1), replace(IDLE, rank=2, where="train.py:1 in f")],
            2,
            "rank 2 was silent and idle for 90 s, at train.py:1 in f",
        ),
        (
            [IDLE, replace(IDLE, rank=1)],
            None,
            "2 ranks were outside of a collective of the script for 90 s; the rank that hung is not "
            "determined",
        ),
        (
            [COLLECTIVE, replace(COLLECTIVE, rank=2)],
            None,
            "all ranks waited for each other in a collective of the script for 90 s: the network is slow or "
            "broken",
        ),
        (
            [
                COLLECTIVE,
                replace(COLLECTIVE, rank=2),
                replace(COLLECTIVE, rank=3, where="train.py:50 in end"),
            ],
            3,
            "rank 3 was silent and idle for 90 s, at train.py:50 in end",
        ),
    ],
)
def test_the_rank_that_differs_is_named(positions, rank, message):
    found = silent_rank(positions)
    assert (found and found.rank) == rank
    assert describe_hang(positions) == message


SPIED = """\
Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    Condition.wait (/usr/lib/python3.11/threading.py:327)
    load (/home/ada/train.py:9)
    <module> (/home/ada/train.py:12)
Thread 8 (idle): "Thread-1"
    Event.wait (/home/ada/other.py:1)
"""
PRINTED = """\
step 3
Fatal Python error: Aborted

Thread 0x00007f2d835576c0 (most recent call first):
  File "/home/ada/other.py", line 2 in idle

Current thread 0x00007f2d83fbeb80 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/v/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/train.py", line 30 in step

Extension modules: torch._C (total: 1)
"""


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        (SPIED, Stack("train.py:9 in load", waiting=False)),
        (PRINTED, Stack("train.py:30 in step", waiting=True)),
        (
            SPIED.replace("/home/ada", "/usr/lib/python3.11"),
            Stack("threading.py:327 in Condition.wait", False),
        ),
        ("Permission denied", None),
    ],
)
def test_the_main_thread_is_read_from_both_kinds_of_stacks(text, stack):
    assert main_thread(text) == stack


def test_lines_of_stacks_complete_the_positions():
    positions = [replace(IDLE, where=""), replace(IDLE, rank=1, where="")]
    done = with_stacks(positions, {1: Stack("train.py:30 in step", waiting=True)})
    assert done == [positions[0], COLLECTIVE]


SLEEPS = """\
import subprocess, sys, time
def load():
    print("ready", flush=True)
    time.sleep(600)
loader = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
load()
"""


@pytest.fixture
def sleeper(tmp_path):
    """A rank with a loader process below a launcher, which writes into its log; gives launcher and rank."""
    attempt = RunDir(tmp_path / "s" / "r").attempt(0)
    attempt.path.mkdir(parents=True)
    (tmp_path / "train.py").write_text(SLEEPS)
    log = attempt.rank_log(5).open("w")
    words = ["sh", "-c", 'RANK=5 LOCAL_RANK=1 "$@"; :', "sh", sys.executable, str(tmp_path / "train.py")]
    env = os.environ | {"PYTHONFAULTHANDLER": "1"}
    with log, subprocess.Popen(words, stdout=log, stderr=log, env=env) as launcher:
        wait_until(lambda: "ready" in attempt.rank_log(5).read_text())
        [rank] = rank_processes([launcher.pid])
        yield attempt, rank
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)


def test_faulthandler_prints_the_stack_of_a_rank(sleeper, tmp_path, monkeypatch):
    attempt, rank = sleeper
    assert rank.rank == 5
    assert work_of(rank.pid)[0] > 0
    monkeypatch.setattr(rank_stacks.shutil, "which", lambda *_, **__: None)
    os.kill(rank.pid, signal.SIGSTOP)
    assert save_stacks(attempt, [rank], tmp_path, None) == {5: Stack("train.py:4 in load", False)}
    assert "line 4 in load" in attempt.stack(5).read_text()
    assert "ready" not in attempt.stack(5).read_text()


def test_py_spy_is_preferred_and_ends_no_rank(sleeper, tmp_path, monkeypatch):
    attempt, rank = sleeper
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ncat <<'END'\n{SPIED}END\necho \"$@\"\n")
    spy.chmod(0o755)
    monkeypatch.setattr(rank_stacks.sys, "executable", str(tmp_path / "python"))
    assert save_stacks(attempt, [rank], tmp_path, "/nowhere") == {5: Stack("train.py:9 in load", False)}
    assert f"dump --full-filenames --pid {rank.pid}" in attempt.stack(5).read_text()
    assert is_running(rank.pid)


def test_a_command_without_ranks_is_its_process_and_a_shared_log_names_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_stacks.shutil, "which", lambda *_, **__: None)
    script = "import os, faulthandler, time; faulthandler.enable(); os.write(1, b'.'); time.sleep(600)"
    words = [
        "sh",
        "-c",
        'for n in 0 1; do NODE_RANK=$n "$@" & done; wait',
        "sh",
        sys.executable,
        "-c",
        script,
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log) as launcher:
        wait_until(lambda: (tmp_path / "log").stat().st_size == 2)
        ranks = rank_processes(children_of(launcher.pid))
        assert [each.rank for each in ranks] == [0, 1]
        attempt = RunDir(tmp_path).attempt(0)
        attempt.path.mkdir(parents=True)
        assert save_stacks(attempt, ranks, tmp_path, None) == {}
        assert attempt.stack(0).read_text().count("Current thread") == 2


def test_a_rank_without_a_stack_is_named_and_the_flight_recorder_is_asked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rank_stacks, "_TRACE_S", 0)
    monkeypatch.setattr(rank_stacks.shutil, "which", lambda *_, **__: None)
    stem = tmp_path / TRACE_PIPES
    os.mkfifo(f"{stem}5.pipe")
    os.mkfifo(f"{stem}6.pipe")
    reader = os.open(f"{stem}5.pipe", os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(["sleep", "600"]) as other:
        attempt = RunDir(tmp_path).attempt(0)
        assert save_stacks(attempt, [RankProcess(5, other.pid)], tmp_path, None) == {}
    assert os.read(reader, 9) == b"1"
    os.close(reader)
    assert "no stack of rank 5" in capsys.readouterr().out
