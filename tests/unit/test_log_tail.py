"""Logs of all ranks and nodes in the order of their times."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.run_directory import Attempt
from jobs.cli import logs as log_tail
from jobs.cli.logs import LogLine, LogTail, logs_of, title_of


def rank_line(second: float, rank: int, text: str = "step") -> str:
    return f"time=2026-01-02T03:04:{second:06.3f}Z level=info rank={rank} msg={text}\n"


def agent_line(second: float, text: str) -> str:
    return f"2026-01-02T03:04:{second:06.3f}+00:00 agent: {text}\n"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path, 0)


def merged(attempt: Attempt) -> LogTail:
    return LogTail(lambda: logs_of(attempt))


def texts(lines: list[LogLine]) -> list[tuple[str, str]]:
    return [(title_of(line.source), line.text.decode()) for line in lines]


def test_lines_are_ordered_by_time_and_those_without_stay_with_the_line_before(attempt: Attempt) -> None:
    trace = "Traceback:\n  line 2\n"
    attempt.rank_log(0).write_text(rank_line(1, 0) + rank_line(4, 0))
    attempt.rank_log(10).write_text(rank_line(2, 10) + trace + rank_line(3, 10, "end"))
    attempt.node_log(1).write_text(agent_line(1.5, "node 1"))
    assert texts(list(merged(attempt).lines(ended=True))) == [
        ("rank 0", rank_line(1, 0)),
        ("node 1", agent_line(1.5, "node 1")),
        ("rank 10", rank_line(2, 10)),
        ("rank 10", "Traceback:\n"),
        ("rank 10", "  line 2\n"),
        ("rank 10", rank_line(3, 10, "end")),
        ("rank 0", rank_line(4, 0)),
    ]


def test_an_earlier_time_does_not_change_the_order_within_a_file(attempt: Attempt) -> None:
    lines = [agent_line(5, "a"), agent_line(2, "b"), agent_line(6, "c")]
    attempt.node_log(0).write_text("".join(lines))
    attempt.rank_log(0).write_text(rank_line(5.5, 0))
    tail = merged(attempt)
    assert [text for _, text in texts(list(tail.lines(ended=True)))] == [
        *lines[:2],
        rank_line(5.5, 0),
        lines[2],
    ]


def test_lines_that_rank_0_also_writes_to_the_log_of_its_node_are_printed_once(attempt: Attempt) -> None:
    attempt.node_log(0).write_text(agent_line(1, "node 0") + rank_line(2, 0) + rank_line(3, 1))
    attempt.rank_log(0).write_text(rank_line(2, 0))
    assert [source for source, _ in texts(list(merged(attempt).lines(ended=True)))] == [
        "node 0",
        "rank 0",
        "node 0",
    ]


def test_files_without_times_come_one_after_the_other(attempt: Attempt) -> None:
    attempt.rank_log(1).write_text("c\nd\n")
    attempt.rank_log(0).write_text("a\nb")
    lines = [line.text for line in merged(attempt).lines(ended=True)]
    assert lines == [b"a\n", b"b", b"c\n", b"d\n"]


def test_growing_and_new_files_are_read_on(attempt: Attempt) -> None:
    attempt.rank_log(0).write_text(rank_line(1, 0) + "part")
    tail = merged(attempt)
    assert texts(list(tail.lines(ended=False))) == [("rank 0", rank_line(1, 0))]
    attempt.rank_log(1).write_text(rank_line(2, 1))
    with open(attempt.rank_log(0), "a") as log:
        log.write("ial\n" + rank_line(3, 0))
    assert texts(list(tail.lines(ended=False))) == [
        ("rank 0", "partial\n"),
        ("rank 1", rank_line(2, 1)),
        ("rank 0", rank_line(3, 0)),
    ]
    assert list(tail.lines(ended=True)) == []


def test_more_logs_than_files_may_be_open(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(log_tail.resource, "getrlimit", lambda which: (16, 4096))
    monkeypatch.setattr(log_tail.resource, "setrlimit", lambda which, limit: limits.append(limit))
    for rank in range(20):
        attempt.rank_log(rank).write_text("")
    list(merged(attempt).lines(ended=False))
    assert limits == [(84, 4096)]
