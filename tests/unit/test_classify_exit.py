"""Classification of why an attempt ended."""

from __future__ import annotations

import signal
import socket
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core import exit_evidence
from jobs.core.attempt import close_attempt
from jobs.core.classify_exit import ExitEvidence, ExitStatus, classify_exit, last_rank_line, root_cause_worker
from jobs.core.rank_positions import RankPosition
from jobs.core.requeue_policy import EXIT_LAUNCH_FAILED, RULES

TORCHRUN_SAYS = """\
[rank1]: ValueError: too deep
E1121 02:17:59.068000 14776 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) \
local_rank: 0 (pid: 14798) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
trainer FAILED
------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_02:17:59
  host      : localhost
  rank      : 1 (local_rank: 0)
  exitcode  : {code} (pid: 14798) {name}
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14798
======================================================
"""


def error(rank: int, time: float, cause: str = "crashed", message: str = "boom") -> dict[str, Any]:
    return {"rank": rank, "time": time, "kind": "RuntimeError", "message": message, "cause": cause}


RESET = "[gloo/transport/tcp/pair.cc:534] Connection reset by peer [10.0.0.2]:41234"
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 900000ms for recv operation"
EXITED = [(0, 1), (2, 7)]
HANG = [
    RankPosition(0, "step", 5, 75.0, 60.0, waiting=True, stopped=False, where="a.py:1 in backward"),
    RankPosition(1, "step", 5, 70.0, 60.0, waiting=True, stopped=True, where="a.py:1 in backward"),
]
# on CUDA the host of a rank that waits blocks on the launch queue of its device
ON_LAUNCH_QUEUE = [replace(each, waiting=False, stopped=False) for each in HANG]


@pytest.mark.parametrize(
    ("evidence", "cause", "says"),
    [
        (ExitEvidence(True, {0: 0}), "finished", ""),
        (ExitEvidence(True, {0: 1}), "finished", ""),  # the proof is metrics.json, not the exit code
        (ExitEvidence(False, {0: 0, 1: 0}), "crashed", "metrics.json does not say completed"),
        (
            ExitEvidence(
                False, {0: 0}, graceful_cause="deadline", graceful_message="saved and stopped at step 3"
            ),
            "deadline",
            "saved and stopped at step 3",
        ),
        (
            ExitEvidence(False, {0: 1}, graceful_cause="preempted", external_cause="cancelled"),
            "cancelled",
            "",
        ),
        (
            ExitEvidence(False, {0: 1}, external_cause="timeout", external_message="at 5 min"),
            "timeout",
            "at 5 min",
        ),
        (ExitEvidence(False, {0: -15}, [error(0, 1.0)], external_cause="cancelled"), "cancelled", ""),
        (ExitEvidence(False, {0: 1}, graceful_cause="preempted", external_cause="timeout"), "preempted", ""),
        (
            ExitEvidence(False, {0: 1}, [error(0, 1.0)], external_cause="lost", external_message="n1"),
            "lost",
            "n1",
        ),
        (
            ExitEvidence(False, {0: 143}, requested_cause="preempted", requested_at=5.0),
            "preempted",
            "before it could save",
        ),
        (
            ExitEvidence(False, {0: 1}, [error(0, 6.0)], requested_cause="deadline", requested_at=5.0),
            "deadline",
            "request to stop",
        ),
        (
            ExitEvidence(False, {0: 69, 1: 69}, preflight_refusal="node b: few GPUs", nodes_at_fault=[1]),
            "preflight_failed",
            "node b: few GPUs",
        ),
        (
            ExitEvidence(False, {0: 69}, preflight_refusal="node b", external_cause="cancelled"),
            "cancelled",
            "",
        ),
        (
            ExitEvidence(False, {0: 1}, [error(0, 4.0)], requested_cause="preempted", requested_at=5.0),
            "crashed",
            "boom",
        ),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [error(0, 2.0), error(1, 1.0)]),
            "crashed",
            "rank 1: RuntimeError: boom",
        ),
        (ExitEvidence(False, {0: 1}, [error(0, 1.0, "out_of_memory")]), "out_of_memory", "rank 0"),
        (ExitEvidence(False, {0: 1}, [error(0, 1.0, "refused", "world\nsize")]), "refused", "world size"),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [error(0, 1.0)], [(1, 9)]),
            "killed",
            "rank 1 was ended by SIGKILL",
        ),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [error(0, 1.0)], [(1, 9)], oom_ranks=[1]),
            "out_of_memory",
            "rank 1 was killed by the kernel",
        ),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [], [(0, 6), (1, 9)], oom_ranks=[1]),
            "out_of_memory",
            "rank 1",
        ),
        (ExitEvidence(False, {0: 1}, [], [(1, signal.SIGSEGV)], oom_ranks=[1]), "killed", "SIGSEGV"),
        (ExitEvidence(False, {0: 1}, [error(0, 1.0)], [(1, signal.SIGABRT)]), "crashed", "rank 0"),
        (ExitEvidence(False, {0: 1}, [], [(1, signal.SIGABRT)]), "killed", "SIGABRT"),
        (ExitEvidence(False, {0: 1}, [error(0, 1.0)], [(1, signal.SIGTERM)]), "crashed", "rank 0"),
        (
            ExitEvidence(False, {0: 137, 1: 137}, [error(0, 9.0)], rank_positions=HANG, hung_at=5.0),
            "hung",
            "rank 1 stopped: no heartbeat for 70 s, in step 6",
        ),
        (
            ExitEvidence(False, {0: 137}, [error(2, 4.0)], rank_positions=HANG, hung_at=5.0),
            "crashed",
            "rank 2: RuntimeError: boom",
        ),
        (
            ExitEvidence(False, {0: 137}, [error(2, 4.0, message=RESET)], rank_positions=HANG, hung_at=5.0),
            "hung",
            "rank 1",
        ),
        (
            ExitEvidence(False, {0: 1}, [error(0, 4.0, message=TIMED_OUT)], rank_positions=HANG),
            "hung",
            "rank 1 stopped: no heartbeat for 70 s, in step 6; rank 0 waited for it",
        ),
        (
            ExitEvidence(False, {0: 1}, [error(0, 4.0, message=RESET)], rank_positions=[HANG[0]]),
            "crashed",
            "Connection reset by peer",
        ),
        (
            ExitEvidence(False, {0: 137}, rank_positions=[HANG[0]], hung_at=5.0, silent_nodes=[1]),
            "hung",
            "node 1 gave no sign, while the other ranks waited in a collective of step 6 for 75 s",
        ),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [error(0, 4.0, message=RESET)], exited_workers=EXITED),
            "crashed",
            "rank 2 exited with code 7; then rank 0: RuntimeError: [gloo",
        ),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [error(0, 4.0)], exited_workers=EXITED),
            "crashed",
            "rank 0: RuntimeError: boom",
        ),
        (
            ExitEvidence(False, {0: 1, 1: 1}, [error(0, 4.0, message=RESET)], lost_peer="node 1 (n7)"),
            "crashed",
            "rank 0 lost its connection to node 1 (n7): rank 0: RuntimeError: [gloo",
        ),
        (ExitEvidence(False, {0: 1, 1: -9}), "lost", "agent of node 1 was ended by SIGKILL"),
        (ExitEvidence(False, {0: 1}, last_lines={0: "bad  word"}), "crashed", "code 1: bad word"),
        (ExitEvidence(False, {0: 1}, ranks_started=False, last_lines={0: "?"}), "launch_failed", "node 0: ?"),
        (
            ExitEvidence(
                False,
                {0: 1, 1: EXIT_LAUNCH_FAILED},
                last_lines={0: "x", 1: "2026-11-22T11:25:31+00:00 agent: no"},
            ),
            "launch_failed",
            "node 1: no",
        ),
    ],
)
def test_the_cause_of_an_exit(evidence: ExitEvidence, cause: str, says: str) -> None:
    verdict = classify_exit(evidence)
    assert verdict.cause == cause
    assert says in (verdict.message or "")
    assert verdict.retryable == RULES[cause].retryable


def test_a_message_is_one_line_of_bounded_length() -> None:
    message = classify_exit(ExitEvidence(False, {0: 1}, [error(0, 1.0, message="a\n" * 1000)])).message or ""
    assert "\n" not in message
    assert len(message) < 350


def test_the_killed_worker_in_a_log_of_torchrun() -> None:
    found_by = datetime(2026, 11, 21, 2, 18).timestamp()
    assert root_cause_worker(TORCHRUN_SAYS.format(code=-9, name="(SIGKILL)")) == (1, -9, found_by)
    assert root_cause_worker(TORCHRUN_SAYS.format(code=7, name="")) == (1, 7, found_by)
    assert root_cause_worker("all is well") is None


def test_the_node_at_the_other_end_of_a_lost_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"10.0.0.2": ("n7.cluster", ["n7-ib"], [])}
    monkeypatch.setattr(socket, "gethostbyaddr", lambda address: names[address])
    run = RunDir(tmp_path / "sweep" / "run")
    attempt = run.attempt(0)
    write_json(attempt.record, {"attempt": 0, "ended": None, "nodes": ["n6", "n7"]})
    write_json(attempt.error(1), error(1, 2.0, message=RESET.replace("10.0.0.2", "10.0.0.9")))
    write_json(attempt.error(0), error(0, 1.0, message=RESET))
    message = str(close_attempt(run, attempt, {0: 1, 1: 1}).message)
    assert message.startswith("rank 0 lost its connection to node 1 (n7): rank 0: RuntimeError: [gloo")


def test_closing_an_attempt_does_not_wait_for_a_name_service_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()

    def late(address: str) -> tuple[str, list[str], list[str]]:
        closed.wait(20)
        return "n7", [], []

    monkeypatch.setattr(socket, "gethostbyaddr", late)
    monkeypatch.setattr(exit_evidence, "_LOOKUP_S", 0.1)
    run = RunDir(tmp_path / "sweep" / "run")
    attempt = run.attempt(0)
    write_json(attempt.record, {"attempt": 0, "ended": None, "nodes": ["n6", "n7"]})
    write_json(attempt.error(0), error(0, 1.0, message=RESET))
    try:
        message = str(close_attempt(run, attempt, {0: 1, 1: 1}).message)
    finally:
        closed.set()
    assert message == f"rank 0: RuntimeError: {RESET}", "the address stands for the node"


def test_the_last_line_of_a_log_is_a_ranks() -> None:
    assert last_rank_line(TORCHRUN_SAYS.format(code=1, name="")) == "[rank1]: ValueError: too deep"
    warning = "[W1124 17:00:00.1 socket.cpp:755] [c10d] The hostname cannot be retrieved\n"
    assert last_rank_line(f"no python\n{warning}") == "no python"
    assert last_rank_line(warning) == ""


@pytest.mark.parametrize(
    ("evidence", "ranks", "nodes"),
    [
        (ExitEvidence(False, {0: 1}, [error(3, 1.0)]), (3,), ()),
        (ExitEvidence(False, {0: 1}, [error(0, 1.0, message=RESET)]), (), ()),
        (ExitEvidence(False, {0: 1}, killed_workers=[(2, signal.SIGKILL)]), (2,), ()),
        (ExitEvidence(False, {0: 1}, external_cause="lost", silent_nodes=[1]), (), (1,)),
        (ExitEvidence(False, {0: 1}, external_cause="preempted", silent_nodes=[1]), (), ()),
        (ExitEvidence(False, {0: 0, 1: -9}), (), (1,)),
        (ExitEvidence(False, {0: 1, 1: EXIT_LAUNCH_FAILED}), (), (1,)),
        (ExitEvidence(False, {0: 1}, rank_positions=HANG, hung_at=1.0), (1,), ()),
        (ExitEvidence(False, {0: 1}, rank_positions=ON_LAUNCH_QUEUE, hung_at=1.0), (), ()),
        (
            ExitEvidence(False, {0: 1}, rank_positions=ON_LAUNCH_QUEUE, hung_at=1.0, silent_nodes=[1]),
            (),
            (1,),
        ),
    ],
    ids=[
        "error",
        "lost peer",
        "killed",
        "silent node",
        "pre-empted",
        "agent killed",
        "launch",
        "hung",
        "any of several ranks hung",
        "silent node in a hang",
    ],
)
def test_the_ranks_and_nodes_that_failed_by_themselves(
    evidence: ExitEvidence, ranks: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    status = classify_exit(evidence)
    assert (status.failed_ranks, status.failed_nodes) == (ranks, nodes)


def test_closing_an_attempt_reads_its_evidence(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "sweep" / "run")
    attempt = run.attempt(0)
    write_json(attempt.record, {"attempt": 0, "ended": None})
    write_text(attempt.rank_log(0), "hello\n")
    write_text(attempt.node_log(0), TORCHRUN_SAYS.format(code=1, name=""))
    write_json(attempt.error(0), error(0, 2.0, message="late") | {"traceback": ""})
    write_json(attempt.error(1), error(1, 1.0, message="first") | {"traceback": ""})
    write_text(attempt.error(2), "{ truncated")
    verdict = close_attempt(run, attempt, {0: 1})
    assert verdict == ExitStatus("crashed", "rank 1: RuntimeError: first", failed_ranks=(1,))
    assert read_json(run.failed)["message"] == verdict.message
    assert read_json(attempt.record)["exit_codes"] == {"0": 1}
    assert not run.done.exists()


def test_a_rank_killed_on_a_node_with_oom_kills_is_out_of_memory(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "sweep" / "run")
    attempt = run.attempt(0)
    write_json(attempt.record, {"attempt": 0, "ended": None})
    write_text(attempt.node_log(0), "all is well\n")
    write_text(attempt.node_log(1), TORCHRUN_SAYS.format(code=-9, name="(SIGKILL)"))
    write_json(attempt.node_oom(0), {"kills": 1})
    assert close_attempt(run, attempt, {0: 1, 1: 1}).cause == "killed"
    write_json(attempt.node_oom(1), {"kills": 1})
    assert close_attempt(run, attempt, {0: 1, 1: 1}).cause == "out_of_memory"


def test_the_cause_of_a_graceful_stop_is_that_of_the_metrics(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "sweep" / "run")
    metrics = {"status": "stopped", "stop_cause": "deadline", "attempt": 1, "steps": 3, "steps_total": 9}
    write_json(run.metrics, metrics)
    assert close_attempt(run, run.attempt(1), {0: 0}) == ExitStatus(
        "deadline", "saved and stopped at step 3 of 9"
    )
    assert close_attempt(run, run.attempt(2), {0: 0}).cause == "crashed"


def test_metrics_of_an_earlier_attempt_do_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "sweep" / "run")
    write_json(run.metrics, {"status": "completed", "attempt": 0})
    assert close_attempt(run, run.attempt(1), {0: 0}).cause == "crashed"
    assert close_attempt(run, run.attempt(0), {0: 0}).cause == "finished"
