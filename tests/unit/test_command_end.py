"""How an attempt of a `command` ended: exit codes, the stop signal, and what counts as progress."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import journal
from jobs.core.attempt import close_attempt, newest_checkpoint, open_attempt
from jobs.core.classify_exit import ExitStatus
from jobs.core.environment import command_variables

ROOT_CAUSE = """\
Root Cause (first observed failure):
[0]:
  time      : {time:%Y-%m-%d_%H:%M:%S}
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 10161)
"""
FOUND = 1.8e9
JOB = {"max_attempts": 2, "max_requeues": 99, "stop_signal": "SIGTERM"}
SUCCESS, FAILURE = {0: 0, 1: 0}, {0: 1, 1: 1}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "s" / "r")
    made.checkpoints.mkdir(parents=True)
    write_json(made.run_json, {"config": {"command": ["train.py"], "job": JOB}})
    journal.write_intent(made, {"cluster": "slurm"})
    return made


def begin(run: RunDir) -> Attempt:
    """The next start of the job, on two nodes."""
    restart = len(run.attempts())
    attempt = open_attempt(run, 0, cluster="slurm", job_id="7", nodes=["a", "b"], restart=restart)
    assert attempt is not None
    return attempt


def end(run: RunDir, attempt: Attempt, codes: dict[int, int], stop: str | None = None) -> ExitStatus:
    if stop:
        write_json(attempt.stop, {"cause": stop, "time": time.time() - 1})
    return close_attempt(run, attempt, codes, can_requeue=True)


def fail(attempt: Attempt, rank: int, log: str, code: int = 1, at: float = FOUND) -> None:
    """torchrun found the failure at `FOUND`, and the rank wrote its last line at `at`."""
    cause = ROOT_CAUSE.format(rank=rank, code=code, time=datetime.fromtimestamp(FOUND))
    attempt.node_log(rank).write_text(cause)
    attempt.rank_log(rank).write_text(f"{log}\n\n")
    os.utime(attempt.rank_log(rank), (at, at))


@pytest.mark.parametrize(
    ("codes", "stop", "metrics", "cause", "requeue"),
    [
        (SUCCESS, None, {"samples_per_s": 1.0}, "finished", False),
        (SUCCESS, "deadline", None, "deadline", True),
        (SUCCESS, "stopped", None, "stopped", False),
        (SUCCESS, "deadline", {"attempt": 0, "status": "completed"}, "finished", False),
        ({0: 0, 1: 1}, None, {"attempt": 0, "status": "completed"}, "launch_failed", False),
        (FAILURE, "deadline", None, "deadline", True),
        ({0: 0}, None, None, "lost", True),
    ],
)
def test_the_cause_by_exit_codes(run, codes, stop, metrics, cause, requeue):
    attempt = begin(run)
    if metrics:
        write_json(run.metrics, metrics)
    status = end(run, attempt, codes, stop)
    assert (status.cause, status.decision.requeue) == (cause, requeue)
    assert run.done.exists() == (cause == "finished")


@pytest.mark.parametrize(("other_s", "failed"), [(1, ()), (-1, (1,))])
def test_of_two_ranks_the_one_whose_log_ended_first_failed(run, other_s, failed):
    attempt = begin(run)
    fail(attempt, 0, "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]:5")
    fail(attempt, 1, "KeyError: 'lr'", at=FOUND + other_s)
    assert end(run, attempt, FAILURE).failed_ranks == failed


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
        (TRACEBACK + "torch.OutOfMemoryError: CUDA", 1, "out_of_memory", "torch.OutOfMemoryError: CUDA"),
        (TRACEBACK + "MemoryError\n" + HARMLESS, 1, "out_of_memory", "exit code 1: MemoryError"),
        (CPU_MEMORY.format(75, "not enough"), 1, "out_of_memory", "DefaultCPUAllocator: not enough memory"),
        (TRACEBACK + f"{ILLEGAL}\n[rank1]: Compile with `X`.", 1, "crashed", f"{ILLEGAL} Compile with"),
        (CAUGHT + "\nno batch fits", 3, "crashed", "exit code 3: no batch fits"),
        (HARMLESS, 3, "crashed", "exit code 3: no error message in its log"),
        ("usage: train.py [-h]: bad", 2, "crashed", "exit code 2: usage: train.py [-h]: bad"),
        ("segfault", -11, "killed", "SIGSEGV"),
    ],
)
def test_the_cause_of_a_failed_process(run, log, code, cause, message):
    attempt = begin(run)
    fail(attempt, 1, log, code)
    status = end(run, attempt, FAILURE)
    assert status.cause == cause
    assert message in str(status.message)


@pytest.mark.parametrize(("after_s", "cause"), [(-5, "preempted"), (0.5, "preempted"), (5, "crashed")])
def test_a_script_that_prints_nothing_failed_when_torchrun_found_it(run, after_s, cause):
    attempt = begin(run)
    fail(attempt, 1, "step 7", code=3, at=FOUND - 100)
    write_json(attempt.stop, {"cause": "preempted", "time": FOUND + after_s})
    assert end(run, attempt, FAILURE).cause == cause


def test_a_new_file_is_progress_and_an_exit_with_code_0_is_none(run):
    for _ in range(4):  # more than max_attempts: pre-emptions do not count
        assert end(run, begin(run), SUCCESS, "preempted").decision.requeue
    assert newest_checkpoint(run) is None
    for number in range(4):
        attempt = begin(run)
        (run.checkpoints / "deep").mkdir(exist_ok=True)
        path = run.checkpoints / "deep" / f"{9 - number}.pt"
        path.touch()
        os.utime(path, (1e6 + number, 1e6 + number))
        saved = end(run, attempt, SUCCESS, "deadline")
        assert saved.decision.requeue
        assert "DISTTRAIN_SAVED" not in str(saved.message)
        assert read_json(attempt.record)["checkpoint_after"] == int(1e6) + number
    assert end(run, begin(run), FAILURE, "deadline").decision.requeue
    last = end(run, begin(run), SUCCESS, "deadline")
    assert (last.decision.requeue, last.decision.limit_reached) == (False, True)
    assert "DISTTRAIN_SAVED" in str(last.message)


def test_the_file_to_touch_after_a_save_elsewhere_is_progress(run):
    attempt = begin(run)
    Path(command_variables(run, attempt, {"job": JOB})["DISTTRAIN_SAVED"].value).touch()
    assert "DISTTRAIN_SAVED" not in str(end(run, attempt, SUCCESS, "deadline").message)
    assert end(run, begin(run), FAILURE).decision.requeue, "a crash after a save is tried again"


@pytest.mark.parametrize(("unconnected", "apart"), [([0, 1], True), ([1], False)])
def test_ranks_trained_apart_if_no_node_saw_a_connection(run, unconnected, apart):
    attempt = begin(run)
    for node in unconnected:
        write_json(attempt.node_unconnected(node), {"ranks": 2})
    status = end(run, attempt, SUCCESS)
    assert status.cause == "finished"
    assert ("4 ranks trained apart" in (status.message or "")) == apart
