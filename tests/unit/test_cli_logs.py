"""`logs`: the lines of one file or of all by time, further attempts, lost nodes, partial lines."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import submit
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.cli import follow, logs
from jobs.cli.logs import LogTail, logs_of, title_of
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.schedulers.interface import Job
from jobs.status.run_state import RunState
from tests.support.jobs import CODE, FakeScheduler, FakeSlurm, wait_until
from tests.support.states import on_slurm
from tests.support.verbs import RUNS, ask, refused

Step = Callable[[], object]


def rank_line(second: float, rank: int) -> str:
    return f"time=2026-01-02T03:04:{second:06.3f}Z level=info rank={rank} msg=step\n"


def agent_line(second: float) -> str:
    return f"2026-01-02T03:04:{second:06.3f}+00:00 agent: ready\n"


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path, 0)


def read(tail: LogTail, *, ended: bool = True) -> list[str]:
    """Lines with the title of their file; of a line with a time, the second alone."""
    lines = [(title_of(line.source), line.text.decode()) for line in tail.lines(ended=ended)]
    return [f"{title}: {text[22:24] if text.startswith('time=') else text[:-1]}" for title, text in lines]


def merged(attempt: Attempt) -> LogTail:
    return LogTail(lambda: logs_of(attempt))


def test_lines_are_ordered_by_time_and_keep_the_order_of_their_file(attempt: Attempt) -> None:
    first, last = agent_line(1.5), agent_line(0.5)
    attempt.node_log(1).write_text(first + last)
    attempt.rank_log(0).write_text(rank_line(1, 0) + rank_line(4, 0))
    attempt.rank_log(10).write_text(rank_line(2, 10) + "Traceback:\n  line 2\n" + rank_line(3, 10))
    assert read(merged(attempt)) == [
        "rank 0: 01", f"node 1: {first[:-1]}", f"node 1: {last[:-1]}", "rank 10: 02", "rank 10: Traceback:",
        "rank 10:   line 2", "rank 10: 03", "rank 0: 04",
    ]  # fmt: skip


def test_files_without_times_come_one_after_the_other(attempt: Attempt) -> None:
    attempt.rank_log(1).write_text("c\nd\n")
    attempt.rank_log(0).write_text("a\nb")
    assert [line.text for line in merged(attempt).lines(ended=True)] == [b"a\n", b"b", b"c\n", b"d\n"]


def test_lines_that_rank_0_also_writes_to_the_log_of_its_node_are_printed_once(attempt: Attempt) -> None:
    attempt.node_log(0).write_text(rank_line(2, 0) + rank_line(3, 1))
    assert len(read(LogTail(lambda: {"node-00": attempt.node_log(0)}))) == 2, "alone it has all of them"
    attempt.rank_log(0).write_text(rank_line(2, 0))
    assert read(merged(attempt)) == ["rank 0: 02", "node 0: 03"]


def test_growing_and_new_files_are_read_on(attempt: Attempt) -> None:
    attempt.rank_log(0).write_text(rank_line(1, 0) + "part")
    tail = merged(attempt)
    assert read(tail, ended=False) == ["rank 0: 01"]
    attempt.rank_log(1).write_text(rank_line(2, 1))
    with open(attempt.rank_log(0), "a") as log:
        log.write("ial\n" + rank_line(3, 0) + "x" * (1 << 20))
    lines = read(tail, ended=False)
    assert lines[:3] == ["rank 0: partial", "rank 1: 02", "rank 0: 03"]
    assert len(lines) == 4, "1 MiB of a line does not wait for its end"
    assert read(tail) == []


def test_more_logs_than_files_may_be_open(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(20):
        attempt.rank_log(rank).touch()
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: set_limits.append(limit))
    for limits in ((16, 4096), (16, 70), (16, -1), (84, 4096), (-1, -1)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limits=limits: limits)
        read(merged(attempt))
    assert set_limits == [(84, 4096), (70, 70), (84, -1)]


@pytest.fixture
def slurm(cluster: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """The scheduler of the run, which is queried before each state."""
    made = FakeSlurm("running")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: made)
    monkeypatch.setattr(follow, "QUERY_INTERVAL_S", 0.0)
    read = follow.PolledRuns.read

    def after_the_query(polled: follow.PolledRuns) -> list[RunState]:
        wait_until(lambda: not polled._is_querying())
        read(polled)
        wait_until(lambda: not polled._is_querying())
        return read(polled)

    monkeypatch.setattr(follow.PolledRuns, "read", after_the_query)
    return made


@pytest.fixture
def run(slurm: FakeSlurm) -> RunDir:
    """A run whose job is on another host."""
    return on_slurm(RUNS, "tiny/n1")


def start(run: RunDir, restart: int = 0) -> int:
    process = current_process().as_dict() | {"host": "node-1"}
    attempt = journal.claim(run, 0, process=process, job_id="7", code_hash=CODE, restart=restart)
    assert attempt is not None
    run.attempt(attempt).path.mkdir(parents=True)
    return attempt


def end(run: RunDir, attempt: int = 0, **outcome: object) -> None:
    about = {"attempt": attempt, "message": None, "retryable": False, "cause": "finished", **outcome}
    write_json(run.done if about["cause"] == "finished" else run.failed, about)


def write(run: RunDir, text: str, attempt: int = 0, rank: int = 0) -> None:
    with open(run.attempt(attempt).rank_log(rank), "a") as log:
        log.write(text)


def requeued(run: RunDir) -> tuple[Step, ...]:
    """A first attempt, which ends for a requeue, and a second one, which finishes."""
    return (
        lambda: (write(run, "first"), end(run, cause="preempted", next="requeue")),
        lambda: start(run, restart=1),
        lambda: write(run, "second\n", 1),
        lambda: (write(run, "third\n", 1), end(run, 1)),
    )


Followed = Callable[..., list[str]]


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Followed:
    """The output of `logs` after each step. The steps happen one after the other while it sleeps."""

    def collect(*steps: Step, options: str = "-f") -> list[str]:
        seen: list[str] = []
        todo: Iterator[Step] = iter(steps)

        def sleep(seconds: float) -> None:
            seen.append(capsys.readouterr().out)
            step = next(todo, None)
            assert step is not None, "it follows for ever"
            step()

        monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=sleep))
        assert submit.main(["logs", "n1", *options.split()]) == 0
        assert next(todo, None) is None, "it ended early"
        return [*seen, capsys.readouterr().out]

    return collect


def test_lines_appear_as_they_are_written_and_never_in_parts(run: RunDir, followed: Followed) -> None:
    start(run)
    steps = (
        lambda: write(run, "one\ntw"),
        lambda: write(run, "o\nthr"),
        lambda: (write(run, "ee"), end(run)),
    )
    assert followed(*steps) == ["", "one\n", "two\n", "three\n"]


def test_lines_written_just_before_the_end_are_printed(
    run: RunDir, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(run)
    write(run, "one\n")
    read, calls = follow.PolledRuns.read, []

    def ends_meanwhile(polled: follow.PolledRuns) -> list[RunState]:
        calls.append(1)
        if len(calls) == 2:
            write(run, "last\n")
            end(run)
        return read(polled)

    monkeypatch.setattr(follow.PolledRuns, "read", ends_meanwhile)
    assert followed(lambda: None) == ["one\n", "last\n"]


def test_it_continues_with_the_attempt_after_a_requeue(
    run: RunDir, slurm: FakeSlurm, followed: Followed
) -> None:
    start(run)
    slurm.job = Job("pending")
    assert followed(*requeued(run)) == ["", "", "first\n", "second\n", "third\n"]


def test_an_attempt_that_is_named_is_followed_to_its_own_end(
    run: RunDir, slurm: FakeSlurm, followed: Followed, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run)
    slurm.job = Job("pending")
    first, second, *_ = requeued(run)
    assert "".join(followed(first, second, options="-f --attempt 0")) == "first\n"
    end(run, 1)
    assert "has attempts 0, 1" in refused(capsys, "logs n1 -f --attempt 4")


def test_an_attempt_that_ended_without_a_rank_is_shown_by_its_node(
    run: RunDir, slurm: FakeSlurm, followed: Followed
) -> None:
    start(run)
    slurm.job = Job("pending")
    run.attempt(0).node_log(0).write_text("node failed\n")
    steps = (lambda: end(run, cause="lost", next="requeue"), *requeued(run)[1:])
    assert followed(*steps) == ["", "", "node failed\n", "second\n", "third\n"]


def test_it_ends_after_the_loss_of_a_node(run: RunDir, slurm: FakeSlurm, followed: Followed) -> None:
    start(run)
    write(run, "one\n")
    lose_node = lambda: setattr(slurm, "job", Job("ended", "a node of its job failed", "lost"))  # noqa: E731
    assert "".join(followed(lose_node)) == "one\n"


def test_the_batch_log_is_followed_until_an_attempt_begins(
    run: RunDir, slurm: FakeSlurm, followed: Followed
) -> None:
    slurm.job, log = Job("pending"), run.submissions / "7.log"
    steps = (
        lambda: log.write_text("copying\nthe da"),
        lambda: log.write_text("copying\nthe data\n"),
        lambda: (start(run), setattr(slurm, "job", Job("running")), write(run, "one\n")),
        lambda: end(run),
    )
    assert followed(*steps) == ["", "copying\n", "the data\n", "one\n", ""]


def test_the_batch_log_of_a_failed_set_up_comes_after_the_attempt_before(
    run: RunDir, slurm: FakeSlurm, followed: Followed, capsys: pytest.CaptureFixture[str]
) -> None:
    end(run, start(run), cause="preempted", next="requeue", ended="2026-11-22T10:00:00+00:00")
    write(run, "first\n")
    slurm.job = Job("pending")

    def fail() -> None:
        (run.submissions / "7.log").write_text("No such file")
        slurm.job = Job("ended", "its job failed")

    assert "".join(followed(fail)) == "first\nNo such file\n"
    assert ask(capsys, "logs n1") == "No such file\n"
    assert ask(capsys, "logs n1 --rank 0") == "first\n"


def test_logs_of_all_ranks_have_titles_and_colours_where_wanted(
    run: RunDir,
    slurm: FakeSlurm,
    followed: Followed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start(run)
    steps = (lambda: (write(run, rank_line(2, 1), rank=1), write(run, rank_line(1, 0))), lambda: end(run))
    seen = "".join(followed(*steps, options="-f --all"))
    assert seen == f"rank 0   | {rank_line(1, 0)}rank 1   | {rank_line(2, 1)}"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = ask(capsys, "logs n1 --all")
    assert coloured == seen.replace("rank 0   |", "\x1b[36mrank 0   |\x1b[0m").replace(
        "rank 1   |", "\x1b[32mrank 1   |\x1b[0m"
    )


def test_logs_choose_the_rank_the_node_and_the_attempt(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.revoke(run, 0, "cancelled", "cancelled before it started")
    for options in ("", " -f"):
        assert "has no log: it has not started (state: failed)" in refused(capsys, f"logs n1{options}")
    for number in (0, 1):
        run.attempt(number).path.mkdir(parents=True)
        run.attempt(number).node_log(0).write_text(f"node 0 attempt {number}\n")
        write_json(run.attempt(number).record, {"first_failed_rank": 2})
    run.attempt(0).rank_log(2).write_text("rank 2\n")
    run.attempt(1).rank_log(0).write_text("one\ntwo")
    for options, text in (
        ("", "one\ntwo\n"),
        ("--node 0 --attempt 0", "node 0 attempt 0\n"),
        ("--attempt 0", "rank 2\n"),
        ("-f", "one\ntwo\n"),
    ):
        assert ask(capsys, f"logs n1 {options}") == text
    assert ask(capsys, "logs n1 --json").splitlines()[0] == '{"log": "rank-00000", "line": "one"}'
    assert "existing logs: node-00, rank-00000" in refused(capsys, "logs n1 --rank 3")
