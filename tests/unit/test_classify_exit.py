"""Why an attempt ended: by its evidence, and by the files that the evidence is read from."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import exit_evidence
from jobs.core.attempt import close_attempt
from jobs.core.classify_exit import ExitEvidence, classify_exit, last_rank_line, root_cause_worker
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
RESET = "[gloo/transport/tcp/pair.cc:534] Connection reset by peer [10.0.0.2]:41234"
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 900000ms for recv operation"
WAITS = RankPosition(0, "step", 5, 75.0, 60.0, waiting=True, stopped=False, where="a.py:1 in backward")
HANG = [WAITS, replace(WAITS, rank=1, stopped=True)]
ON_LAUNCH_QUEUE = [replace(each, waiting=False, stopped=False) for each in HANG]
"""On CUDA the host of a rank that waits blocks on the launch queue of its device."""
NOT_WAITING = [WAITS, replace(WAITS, rank=1, waiting=False)]


def error(rank: int, time: float = 1.0, message: str = "boom", cause: str = "crashed") -> dict[str, Any]:
    return {"rank": rank, "time": time, "kind": "RuntimeError", "message": message, "cause": cause}


def seen(codes: dict[int, int] | None = None, *errors: dict[str, Any], **fields: Any) -> ExitEvidence:
    completed = fields.pop("completed", False)
    return ExitEvidence(completed, codes or {0: 1, 1: 1}, errors, **fields)


def hung(*errors: dict[str, Any], at: float | None = 5.0, **fields: Any) -> ExitEvidence:
    return seen(None, *errors, **{"rank_positions": HANG, "hung_at": at} | fields)


@pytest.mark.parametrize(
    ("evidence", "cause", "failed"),
    [
        # success and ends from outside, strongest first
        (seen(completed=True, external_cause="cancelled"), "finished", ""),
        (
            seen(external_cause="cancelled", graceful_cause="preempted", preflight_refusal="x"),
            "cancelled",
            "",
        ),
        (seen(graceful_cause="preempted", external_cause="timeout", preflight_refusal="x"), "preempted", ""),
        (
            seen(preflight_refusal="x", nodes_at_fault=[1], external_cause="lost"),
            "preflight_failed",
            "node 1",
        ),
        (seen(None, error(0), external_cause="lost", silent_nodes=[1]), "lost", "node 1"),
        (seen(external_cause="preempted", silent_nodes=[1]), "preempted", ""),
        # a request to stop, unless a rank failed before it
        (seen(None, error(0, 5.0), requested_cause="deadline", requested_at=5.0), "deadline", ""),
        (seen(None, error(0, 4.0), requested_cause="deadline", requested_at=5.0), "crashed", "rank 0"),
        # errors of ranks: the first one, unless it is the loss of a peer
        (seen(None, error(0, 2.0), error(1, 1.0, cause="refused")), "refused", "rank 1"),
        (seen(None, error(0, 1.0, RESET), error(1, 2.0)), "crashed", ""),
        (seen(None, error(0, 1.0, RESET), exited_workers=[(0, 1), (2, 7)]), "crashed", "rank 2"),
        (seen(None, error(0), exited_workers=[(2, 7)]), "crashed", "rank 0"),
        # signals: before errors, but for those by which a rank ends after the loss of a peer
        (seen(None, error(0), killed_workers=[(1, SIGKILL)]), "killed", "rank 1"),
        (seen(None, error(0), killed_workers=[(1, SIGABRT)]), "crashed", "rank 0"),
        (seen(killed_workers=[(1, SIGABRT)]), "killed", "rank 1"),
        (seen(None, error(0), killed_workers=[(1, SIGTERM)]), "crashed", "rank 0"),
        (seen(killed_workers=[(0, SIGABRT), (1, SIGKILL)], oom_ranks=[1]), "out_of_memory", ""),
        (seen(killed_workers=[(1, SIGSEGV)], oom_ranks=[1]), "killed", "rank 1"),
        # hangs
        (hung(error(0, 9.0)), "hung", "rank 1"),
        (hung(error(2, 4.0)), "crashed", "rank 2"),
        (hung(error(2, 4.0, RESET)), "hung", "rank 1"),
        (hung(killed_workers=[(0, SIGKILL)], oom_ranks=[0]), "out_of_memory", ""),
        (hung(rank_positions=ON_LAUNCH_QUEUE), "hung", ""),
        (hung(rank_positions=ON_LAUNCH_QUEUE, silent_nodes=[1]), "hung", "node 1"),
        (hung(rank_positions=HANG, silent_nodes=[1]), "hung", "rank 1"),
        # a hang that no agent found before a rank gave up
        (hung(error(0, 4.0, RESET), at=None), "hung", "rank 1"),
        (hung(error(0, 4.0, TIMED_OUT), at=None, rank_positions=NOT_WAITING), "hung", "rank 1"),
        (hung(error(0, 4.0, RESET), at=None, rank_positions=NOT_WAITING), "crashed", ""),
        (hung(error(0, 4.0, RESET), at=None, rank_positions=[WAITS]), "crashed", ""),
        (hung(error(0), at=None), "crashed", "rank 0"),
        (hung(at=None), "crashed", ""),
        # exit codes alone
        (seen({0: 1, 1: -9}), "lost", "node 1"),
        (seen({0: 0}, silent_nodes=[1]), "lost", "node 1"),
        (seen({0: 0, 1: 0}), "crashed", ""),
        (seen({0: 1}), "crashed", ""),
        (seen({0: 1}, ranks_started=False), "launch_failed", "node 0"),
        (seen({0: 1, 1: EXIT_LAUNCH_FAILED}), "launch_failed", "node 1"),
    ],
)
def test_the_cause_and_the_ranks_and_nodes_that_failed_by_themselves(evidence, cause, failed):
    status = classify_exit(evidence)
    names = [f"rank {rank}" for rank in status.failed_ranks] + [
        f"node {node}" for node in status.failed_nodes
    ]
    assert (status.cause, ", ".join(names)) == (cause, failed)
    assert status.retryable == RULES[cause].retryable
    first = re.match(r"rank (\d+)", status.message or "")
    assert status.first_failed_rank == (int(first[1]) if first else None)


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (seen(external_cause="timeout", external_message="at 5 min"), "at 5 min"),
        (seen(graceful_cause="deadline", graceful_message="saved"), "saved"),
        (seen(completed=True, finished_message="apart"), "apart"),
        (seen(None, error(0, 2.0, RESET), error(3, 1.0, TIMED_OUT)), "rank 3: RuntimeError: [gloo"),
        (
            seen(None, error(0, 1.0, RESET), lost_peer="node 1 (n7)"),
            "rank 0 lost its connection to node 1 (n7)",
        ),
        (seen(killed_workers=[(3, SIGKILL), (1, SIGKILL)], oom_ranks=[3, 1]), "rank 1 was killed by"),
        (seen({0: 1}, last_lines={0: "bad  word"}), "exited with code 1: bad word"),
        (
            seen(
                {0: 1, 1: EXIT_LAUNCH_FAILED}, last_lines={0: "x", 1: "2026-11-22T11:25:31+00:00 agent: no"}
            ),
            "node 1: no",
        ),
    ],
)
def test_the_message_names_what_is_known(evidence, says):
    assert says in (classify_exit(evidence).message or "")


def test_a_message_is_one_line_of_bounded_length():
    message = classify_exit(seen(None, error(0, message="a\n" * 1000))).message or ""
    assert "\n" not in message
    assert len(message) < 350


def test_the_killed_worker_in_a_log_of_torchrun():
    found_by = datetime(2026, 11, 21, 2, 18).timestamp()
    assert root_cause_worker(TORCHRUN_SAYS.format(code=-9, name="(SIGKILL)")) == (1, -9, found_by)
    assert root_cause_worker("all is well") is None


def test_the_last_line_of_a_log_is_a_ranks():
    assert last_rank_line(TORCHRUN_SAYS.format(code=1, name="")) == "[rank1]: ValueError: too deep"
    warning = "[W1124 17:00:00.1 socket.cpp:755] [c10d] The hostname cannot be retrieved\n"
    assert last_rank_line(f"no python\n{warning}") == "no python"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "sweep" / "run")


@pytest.fixture
def attempt(run: RunDir) -> Attempt:
    """An open attempt on two nodes, each of which has a log."""
    attempt = run.attempt(0)
    write_json(attempt.record, {"attempt": 0, "ended": None, "nodes": ["n6", "n7"]})
    for node in (0, 1):
        write_text(attempt.node_log(node), "all is well\n")
    return attempt


@pytest.mark.parametrize("answers", [True, False])
def test_the_host_at_the_other_end_of_a_lost_connection_if_the_name_service_answers(
    run, attempt, monkeypatch, answers
):
    closed = threading.Event()

    def look_up(address: str) -> tuple[str, list[str], list[str]]:
        if not answers:
            closed.wait(20)
        return {"10.0.0.2": ("other", ["n7.cluster"], [])}[address]

    monkeypatch.setattr(socket, "gethostbyaddr", look_up)
    if not answers:
        monkeypatch.setattr(exit_evidence, "_LOOKUP_S", 0.1)
    write_json(attempt.error(1), error(1, 2.0, RESET.replace("10.0.0.2", "10.0.0.9")))
    write_json(attempt.error(0), error(0, 1.0, RESET))
    message = str(close_attempt(run, attempt, {0: 1, 1: 1}).message)
    closed.set()
    assert message.startswith(
        "rank 0 lost its connection to node 1 (n7)" if answers else "rank 0: RuntimeError"
    )


def test_the_first_readable_error_of_a_rank_is_recorded_as_the_end(run, attempt):
    write_text(attempt.node_log(0), TORCHRUN_SAYS.format(code=1, name=""))
    write_json(attempt.error(0), error(0, 2.0, "late"))
    write_json(attempt.error(1), error(1, 1.0, "first"))
    write_text(attempt.error(2), "{ truncated")
    status = close_attempt(run, attempt, {0: 1})
    assert (status.cause, status.failed_ranks) == ("crashed", (1,))
    record, outcome = read_json(attempt.record), read_json(run.failed)
    assert record["exit_codes"] == {"0": 1}
    assert record["message"] == outcome["message"] == status.message
    assert record["ended"] == outcome["ended"]
    assert not run.done.exists()


@pytest.mark.parametrize(("failed_at", "cause"), [(4.0, "crashed"), (7.0, "hung")])
def test_a_rank_failed_by_itself_before_the_first_agent_found_the_hang(run, attempt, failed_at, cause):
    for node, found_at in ((0, 9.0), (1, 5.0)):
        record = {"hung": True, "time": found_at, "ranks": [asdict(HANG[node])]}
        write_json(attempt.node_ranks(node), record)
    write_json(attempt.error(2), error(2, failed_at))
    assert close_attempt(run, attempt, {0: 137, 1: 137}).cause == cause


def test_a_rank_that_was_killed_on_a_node_with_oom_kills(run, attempt):
    write_text(attempt.node_log(1), TORCHRUN_SAYS.format(code=-9, name="(SIGKILL)"))
    write_json(attempt.node_oom(0), {"kills": 1})
    assert close_attempt(run, attempt, {0: 1, 1: 1}).cause == "killed"
    write_json(attempt.node_oom(1), {"kills": 1})
    assert close_attempt(run, attempt, {0: 1, 1: 1}).cause == "out_of_memory"


@pytest.mark.parametrize(
    ("metrics", "cause", "says"),
    [
        ({"status": "completed"}, "finished", ""),
        ({"status": "completed", "steps": 3, "steps_total": 9}, "finished", "3"),
        ({"status": "stopped", "stop_cause": "deadline", "steps": 3, "steps_total": 9}, "deadline", "3 of 9"),
        ({"status": "completed", "attempt": 1}, "crashed", ""),
        ({"status": "stopped", "stop_cause": "deadline", "attempt": 1}, "crashed", ""),
    ],
)
def test_metrics_of_this_attempt_prove_success_or_a_graceful_stop(run, attempt, metrics, cause, says):
    write_json(run.metrics, {"attempt": 0, **metrics})
    status = close_attempt(run, attempt, {0: 0, 1: 0})
    assert status.cause == cause
    assert says in (status.message or "")
    assert run.done.exists() == (cause == "finished")
