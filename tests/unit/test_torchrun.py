"""What the agent records and decides while torchrun runs. Its processes are stand-ins; real ones are in
tests/multiprocess/test_job.py and test_hang.py."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core.rank_positions import RankPosition
from jobs.node import peers, torchrun
from jobs.node.allocation import AllocationFacts, NodeContext
from jobs.node.torchrun import Torchrun, TorchrunResult, run_torchrun

CHILD, HOUR_S = 7, 3600.0
WAITS = RankPosition(0, "step", 56, 1.0, 60.0, waiting=True, stopped=False, where="trainer.py:9 in backward")
LATE = replace(WAITS, silent_s=50.0)
OVER = replace(WAITS, silent_s=80.0)
Look = Sequence[RankPosition]
"""The live ranks at one look of the agent."""


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = RunDir(tmp_path / "sweep" / "run").attempt(0)
    attempt.exits.mkdir(parents=True)
    return attempt


@pytest.fixture
def run(attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TorchrunResult]:
    """`run(look, ...)`: a torchrun that ends with `code` after these looks, or is killed by the agent. A
    signal comes before the first look."""

    def act(
        *looks: Look, code: int = 1, received: int | None = None, facts: AllocationFacts | None = None
    ) -> TorchrunResult:
        current: list[Look] = [[]]
        following, signals = iter(looks), iter([received] if received else [])

        def reap_children() -> dict[int, int]:
            found = next(following, None)
            current[0] = current[0] if found is None else found
            return {CHILD: code} if found is None else {}

        monkeypatch.setattr(torchrun.hang.HangWatch, "positions", lambda self: list(current[0]))
        monkeypatch.setattr(torchrun, "wait_for_signal", lambda *_: next(signals, None))
        monkeypatch.setattr(torchrun.processes, "spawn", lambda *_, **__: CHILD)
        monkeypatch.setattr(torchrun.processes, "reap_children", reap_children)
        monkeypatch.setattr(torchrun.processes, "has_children", lambda pid: bool(current[0]))
        monkeypatch.setattr(torchrun.processes, "kill_descendants", dict)
        allocation = Mock(facts=Mock(return_value=facts), restart=0) if facts else None
        node = NodeContext(RunDir(attempt.path.parent.parent), 0, 0, ["a", "b"], allocation)
        return run_torchrun(Torchrun(node, attempt, [], {}, time.time() + HOUR_S, 60.0, tmp_path), 1)

    return act


Run = Callable[..., TorchrunResult]


def positions(attempt: Attempt) -> Any:
    return read_json_or_none(attempt.node_ranks(0))


def test_ranks_that_end_with_those_of_another_node_leave_their_positions(run, attempt, capsys):
    """The node that finds the hang first breaks the connections of the others."""
    outside = replace(LATE, waiting=False, where="traceback.py:1 in print_exc")
    run([WAITS], [LATE], [outside], [])
    left = positions(attempt)
    assert not left["hung"]
    assert RankPosition(**left["ranks"][0]) == LATE, "not where it handled the error"
    assert "progress again" not in capsys.readouterr().out


def test_the_node_that_finds_the_hang_records_it(run, attempt):
    assert run([LATE], [OVER], [], []).code == 128 + signal.SIGKILL
    assert (positions(attempt)["hung"], positions(attempt)["ranks"][0]["silent_s"]) == (True, 80.0)


def test_a_hang_ends_at_once_during_the_grace_after_a_failure(run, attempt):
    peers.record_node_exit(attempt, 1, 1)
    assert run([WAITS], [WAITS], [OVER], [], received=signal.SIGUSR1).code == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("looks", "code"),
    [([[WAITS]], 1), ([[LATE], [WAITS]], 1), ([[LATE]], 0)],
    ids=["in time", "late once", "succeeded"],
)
def test_without_a_hang_nothing_is_recorded(run, attempt, looks, code):
    assert run(*looks, code=code).code == code
    assert positions(attempt) is None


@pytest.mark.parametrize(
    ("status", "number", "code"), [("completed", 0, 0), ("completed", 7, 1), ("running", 0, 1)]
)
def test_torchrun_does_not_wait_for_other_nodes_after_the_end_of_the_run(
    status, number, code, run, attempt, monkeypatch
):
    """All ranks of this node have exited, while torchrun has not."""
    monkeypatch.setattr(peers, "PEER_GRACE_S", 0.0)
    write_json(RunDir(attempt.path.parent.parent).metrics, {"status": status, "attempt": number})
    assert run([WAITS], [], []).code == code


@pytest.mark.parametrize(("change_s", "expected_s"), [(-600.0, -600.0), (600.0, 0.0)])
def test_a_warning_may_shorten_the_time_of_the_job(change_s, expected_s, run, attempt):
    end = time.time() + HOUR_S
    result = run([WAITS], received=signal.SIGUSR1, facts=AllocationFacts(True, 0, end + change_s))
    assert result.job_end == pytest.approx(end + expected_s, abs=60)
    assert read_json_or_none(attempt.stop)["cause"] == "preempted"  # type: ignore[index]
