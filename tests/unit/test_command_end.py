"""How an attempt of a `command` ended: exit codes, the stop signal, and what counts as progress."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import journal
from jobs.core.attempt import close_attempt, newest_checkpoint, open_attempt
from jobs.core.classify_exit import ExitStatus
from jobs.core.environment import command_variables
from jobs.status.run_state import read_state

ROOT_CAUSE = """\
Root Cause (first observed failure):
[0]:
  time      : {time:%Y-%m-%d_%H:%M:%S}
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 10161)
"""
FOUND = 1.8e9
JOB = {"max_attempts": 2, "max_requeues": 99}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "s" / "r")
    made.checkpoints.mkdir(parents=True)
    write_json(made.run_json, {"config": {"command": ["train.py"], "job": JOB}})
    return made


def begin(run: RunDir) -> Attempt:
    intent = {"cluster": "slurm", "config_key": "k", "run_key": "r", "code_hash": "c", "source": "/x"}
    submission = 0 if journal.entries(run) else journal.write_intent(run, intent)
    restart = len(run.attempts())
    found = open_attempt(run, submission, cluster="slurm", job_id="7", nodes=["a", "b"], restart=restart)
    assert found is not None
    return found


def end(run: RunDir, attempt: Attempt, codes: dict[int, int], stop: str | None = None) -> ExitStatus:
    if stop:
        write_json(attempt.stop, {"cause": stop, "time": time.time() - 1})
    return close_attempt(run, attempt, codes, can_requeue=True)


def fail(attempt: Attempt, rank: int, line: str, code: int = 1, **times: float) -> None:
    time = datetime.fromtimestamp(times.get("found", FOUND))
    attempt.node_log(rank).write_text(ROOT_CAUSE.format(rank=rank, code=code, time=time))
    attempt.rank_log(rank).write_text(f"{line}\n\n")
    if "at" in times:
        os.utime(attempt.rank_log(rank), (times["at"], times["at"]))


@pytest.mark.parametrize(
    ("codes", "stop", "metrics", "cause", "requeue"),
    [
        ({0: 0, 1: 0}, None, None, "finished", False),
        ({0: 0, 1: 0}, None, {"samples_per_s": 1.0}, "finished", False),
        ({0: 0, 1: 0}, "deadline", None, "deadline", True),
        ({0: 0, 1: 0}, "preempted", None, "preempted", True),
        ({0: 0, 1: 0}, "stopped", None, "stopped", False),
        ({0: 0, 1: 0}, "deadline", {"attempt": 0, "status": "completed"}, "finished", False),
        ({0: 0, 1: 1}, None, {"attempt": 0, "status": "completed"}, "launch_failed", False),
        ({0: 1, 1: 1}, "deadline", None, "deadline", True),
        ({0: 0}, None, None, "lost", True),
    ],
)
def test_the_cause_by_exit_codes(
    run: RunDir, codes: dict[int, int], stop: str | None, metrics: Any, cause: str, requeue: bool
) -> None:
    attempt = begin(run)
    if metrics:
        write_json(run.metrics, metrics)
    status = end(run, attempt, codes, stop)
    assert (status.cause, status.decision.requeue) == (cause, requeue)
    assert run.done.exists() == (cause == "finished")


def test_the_failed_rank_is_named_by_the_last_line_of_its_log(run: RunDir) -> None:
    attempt = begin(run)
    fail(attempt, 0, "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:5", at=100.0)
    fail(attempt, 1, "KeyError: 'lr'", at=200.0)
    status = end(run, attempt, {0: 1, 1: 1})
    assert status.cause == "crashed"
    assert "rank 0: RuntimeError: [gloo]" in str(status.message)
    other = begin(run) if status.decision.requeue else attempt
    fail(other, 1, "KeyError: 'lr'", at=50.0)
    assert end(run, other, {0: 1, 1: 1}).message.startswith("rank 1: KeyError: 'lr'")  # type: ignore[union-attr]


TRACEBACK = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/x/train.py", line 9, in <module>
[rank1]:     step()
[rank1]: """
HARMLESS = """\
[W1124 17:00:00.123456789 socket.cpp:755] [c10d] The hostname of the client socket cannot be retrieved
W1124 17:00:00.123000 4711 torch/distributed/run.py:851] Setting OMP_NUM_THREADS
[rank1]:[W1124 17:00:00.123456789 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called
[rank1]:W1124 17:00:00.123000 4711 torch/_inductor/utils.py:1] [0/0] Not enough SMs
n7:123:456 [0] NCCL INFO cudaDriverVersion 12040
[2026-11-24 17:00:00] n7:123:456 [0] init.cc:12 NCCL WARN slow
/x/train.py:7: UserWarning: an old argument
  warnings.warn("an old argument")
"""
CPU_MEMORY = "RuntimeError: [enforce fail at alloc_cpu.cpp:{}] . DefaultCPUAllocator: {} memory: you tried"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access"
CAUGHT = TRACEBACK.replace("[rank1]: ", "") + "OutOfMemoryError: batch 64"


@pytest.mark.parametrize(
    ("log", "code", "cause", "message"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory", 1, "out_of_memory", "torch.OutOfMemoryError: CUDA"),
        (TRACEBACK + "torch.OutOfMemoryError: CUDA", 1, "out_of_memory", "1: torch.OutOfMemoryError: CUDA"),
        (TRACEBACK + "MemoryError\n" + HARMLESS, 1, "out_of_memory", "exit code 1: MemoryError"),
        (TRACEBACK + CPU_MEMORY.format(127, "can't allocate"), 1, "out_of_memory", "1: RuntimeError: [en"),
        (CPU_MEMORY.format(75, "not enough"), 1, "out_of_memory", "DefaultCPUAllocator: not enough memory"),
        (TRACEBACK + f"{ILLEGAL}\n[rank1]: Compile with `X`.", 1, "crashed", f"1: {ILLEGAL} Compile with"),
        (CAUGHT + "\nno batch fits", 3, "crashed", "rank 1: exit code 3: no batch fits"),
        ("no data at /x\n" + HARMLESS, 3, "crashed", "rank 1: exit code 3: no data at /x"),
        (HARMLESS, 3, "crashed", "rank 1: exit code 3: no error message in its log"),
        ("usage: train.py [-h]: bad", 2, "crashed", "exit code 2: usage: train.py [-h]: bad"),
        ("segfault", -11, "killed", "rank 1 was ended by SIGSEGV"),
    ],
)
def test_the_cause_of_a_failed_process(run: RunDir, log: str, code: int, cause: str, message: str) -> None:
    attempt = begin(run)
    fail(attempt, 1, log, code)
    status = end(run, attempt, {0: 1, 1: 1})
    assert status.cause == cause
    assert message in str(status.message)


@pytest.mark.parametrize(("after_s", "cause"), [(-5, "preempted"), (0.5, "preempted"), (5, "crashed")])
def test_a_script_that_prints_nothing_failed_when_torchrun_found_it(
    run: RunDir, after_s: float, cause: str
) -> None:
    attempt = begin(run)
    fail(attempt, 1, "step 7", code=3, at=FOUND - 100, found=FOUND)
    write_json(attempt.stop, {"cause": "preempted", "time": FOUND + after_s})
    status = end(run, attempt, {0: 1, 1: 1})
    assert status.cause == cause
    assert status.failed_ranks == ((1,) if cause == "crashed" else ())


def test_a_new_file_is_progress_and_an_exit_with_code_0_is_none(run: RunDir) -> None:
    for _ in range(4):  # more than max_attempts
        assert end(run, begin(run), {0: 0, 1: 0}, "preempted").decision.requeue
    assert newest_checkpoint(run) is None
    for number in range(4):
        attempt = begin(run)
        (run.checkpoints / "deep").mkdir(exist_ok=True)
        path = run.checkpoints / "deep" / f"{number}.pt"
        path.touch()
        os.utime(path, (1e6 + number, 1e6 + number))
        saved = end(run, attempt, {0: 0, 1: 0}, "deadline")
        assert saved.decision.requeue
        assert "DISTTRAIN_SAVED" not in str(saved.message)
        assert read_json(attempt.record)["checkpoint_after"] == int(1e6) + number
    assert end(run, begin(run), {0: 1, 1: 1}, "deadline").decision.requeue
    last = end(run, begin(run), {0: 0, 1: 0}, "deadline")
    assert not last.decision.requeue
    assert "did not touch DISTTRAIN_SAVED" in str(last.message)
    assert "job.max_attempts=2 in a row without a newer checkpoint" in str(last.message)


def test_the_file_to_touch_after_a_save_elsewhere_is_progress(run: RunDir) -> None:
    attempt = begin(run)
    Path(command_variables(run, attempt, {"job": JOB})["DISTTRAIN_SAVED"].value).touch()
    assert "did not touch" not in str(end(run, attempt, {0: 0, 1: 0}, "deadline").message)
    assert end(run, begin(run), {0: 1, 1: 1}).decision.requeue, "a crash after a save is tried again"


@pytest.mark.parametrize(("unconnected", "apart"), [([0, 1], True), ([1], False)])
def test_ranks_trained_apart_if_no_node_saw_a_connection(
    run: RunDir, unconnected: list[int], apart: bool
) -> None:
    attempt = begin(run)
    for node in unconnected:
        write_json(attempt.node_unconnected(node), {"ranks": 2})
    end(run, attempt, {0: 0, 1: 0})
    state = read_state(run)
    assert state.state == "done"
    assert ("4 ranks trained apart" in (state.message or "")) == apart
