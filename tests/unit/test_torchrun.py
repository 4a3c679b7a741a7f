"""Positions of ranks that the agent records when its torchrun ends during a hang of the whole job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.core.rank_positions import RankPosition
from jobs.node import torchrun
from jobs.node.allocation import NodeContext
from jobs.node.torchrun import Torchrun, run_torchrun

CHILD = 7
WAITS = RankPosition(0, "step", 56, 1.0, 60.0, waiting=True, stopped=False, where="trainer.py:9 in backward")
LATE = replace(WAITS, silent_s=50.0)
OVER = replace(WAITS, silent_s=80.0)

Look = Sequence[RankPosition]
"""The live ranks at one look of the agent."""
Recorded = Callable[..., dict[str, Any] | None]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """`recorded(look, ..., code=1)`: the record of positions after a torchrun that ends with `code` after
    these looks, or is killed by the agent."""

    def run(*looks: Look, code: int = 1) -> dict[str, Any] | None:
        run_dir = RunDir(tmp_path / "sweep" / "run")
        attempt = run_dir.attempt(0)
        attempt.path.mkdir(parents=True)
        current: list[Look] = [[]]
        following = iter(looks)

        def reap_children() -> dict[int, int]:
            found = next(following, None)
            current[0] = current[0] if found is None else found
            return {CHILD: code} if found is None else {}

        monkeypatch.setattr(torchrun.hang.HangWatch, "positions", lambda self: list(current[0]))
        monkeypatch.setattr(torchrun, "wait_for_signal", lambda *_: None)
        monkeypatch.setattr(torchrun.processes, "spawn", lambda *_, **__: CHILD)
        monkeypatch.setattr(torchrun.processes, "reap_children", reap_children)
        monkeypatch.setattr(torchrun.processes, "has_children", lambda pid: True)
        monkeypatch.setattr(torchrun.processes, "kill_descendants", dict)
        node = NodeContext(run_dir, 0, 0, ["a", "b"], None)
        run_torchrun(Torchrun(node, attempt, [], {}, time.time() + 3600, 60.0, tmp_path), 1)
        return read_json_or_none(attempt.node_ranks(0))

    return run


def test_ranks_that_end_with_those_of_another_node_leave_their_positions(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node that finds the hang first breaks the connections of the others."""
    outside = replace(LATE, waiting=False, where="traceback.py:1 in print_exc")
    left = recorded([WAITS], [LATE], [outside], [])
    assert left is not None
    assert not left["hung"]
    assert RankPosition(**left["ranks"][0]) == LATE, "not where it handled the error"
    assert "progress again" not in capsys.readouterr().out


def test_the_node_that_finds_the_hang_records_it(recorded: Recorded) -> None:
    left = recorded([LATE], [OVER])
    assert left is not None
    assert (left["hung"], left["ranks"][0]["silent_s"]) == (True, 80.0)


@pytest.mark.parametrize(
    ("looks", "code"),
    [([[WAITS]], 1), ([[LATE], [WAITS]], 1), ([[LATE]], 0)],
    ids=["in time", "late once", "succeeded"],
)
def test_without_a_hang_nothing_is_recorded(recorded: Recorded, looks: list[Look], code: int) -> None:
    assert recorded(*looks, code=code) is None
