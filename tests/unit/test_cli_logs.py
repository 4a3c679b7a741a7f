"""`logs --follow`: further attempts, lost nodes, last and partial lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import submit
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import follow, logs
from jobs.core import journal
from jobs.core.processes import current_process
from jobs.schedulers.interface import Job
from jobs.status.run_state import RunState
from tests.support.jobs import CODE, FakeScheduler, FakeSlurm, wait_until
from tests.support.states import on_slurm
from tests.support.verbs import RUNS

Step = Callable[[], object]


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
    """Start an attempt of its job on another host."""
    process = current_process().as_dict() | {"host": "node-1"}
    attempt = journal.claim(run, 0, process=process, job_id="7", code_hash=CODE, restart=restart)
    assert attempt is not None
    run.attempt(attempt).path.mkdir(parents=True)
    return attempt


def end(run: RunDir, attempt: int, **outcome: object) -> None:
    about = {"attempt": attempt, "message": None, "retryable": False, "cause": "finished", **outcome}
    write_json(run.done if about["cause"] == "finished" else run.failed, about)


def write(run: RunDir, text: str, attempt: int = 0) -> None:
    with open(run.attempt(attempt).rank_log(0), "a") as log:
        log.write(text)


def followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *steps: Step, options: str = "-f"
) -> list[str]:
    """Output after each step: the steps happen one after the other while `logs` sleeps."""
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


def test_lines_appear_as_they_are_written_and_never_in_parts(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = start(run)
    steps = (
        lambda: write(run, "one\ntw"),
        lambda: write(run, "o\nthr"),
        lambda: (write(run, "ee"), end(run, attempt)),
    )
    assert followed(monkeypatch, capsys, *steps) == ["", "one\n", "two\n", "three\n"]


def test_lines_written_just_before_the_end_are_printed(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = start(run)
    write(run, "one\n")
    read = follow.PolledRuns.read
    calls: list[int] = []

    def ends_meanwhile(polled: follow.PolledRuns) -> list[RunState]:
        calls.append(1)
        if len(calls) == 2:
            write(run, "last\n")
            end(run, attempt)
        return read(polled)

    monkeypatch.setattr(follow.PolledRuns, "read", ends_meanwhile)
    assert followed(monkeypatch, capsys, lambda: None) == ["one\n", "last\n"]


def requeued(run: RunDir) -> tuple[Step, ...]:
    """A first attempt, which ends for a requeue, and a second one, which finishes."""
    return (
        lambda: (write(run, "first"), end(run, 0, cause="preempted", next="requeue")),
        lambda: start(run, restart=1),
        lambda: write(run, "second\n", 1),
        lambda: (write(run, "third\n", 1), end(run, 1)),
    )


def test_it_continues_with_the_attempt_after_a_requeue(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run)
    slurm.job = Job("pending")
    assert followed(monkeypatch, capsys, *requeued(run)) == ["", "", "first\n", "second\n", "third\n"]


def test_an_attempt_that_is_named_is_followed_to_its_own_end(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run)
    slurm.job = Job("pending")
    first, second, *_ = requeued(run)
    seen = followed(monkeypatch, capsys, first, second, options="-f --attempt 0")
    assert "".join(seen) == "first\n"


def test_an_attempt_without_a_rank_is_shown_by_its_node(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run)
    slurm.job = Job("pending")
    run.attempt(0).node_log(0).write_text("node failed\n")
    lost = lambda: end(run, 0, cause="lost", next="requeue")  # noqa: E731
    seen = followed(monkeypatch, capsys, lost, *requeued(run)[1:])
    assert "".join(seen) == "node failed\nsecond\nthird\n"


def test_it_ends_after_the_loss_of_a_node(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run)
    write(run, "one\n")

    def lose_node() -> None:
        slurm.job = Job("ended", "a node of its job failed", "lost")

    seen = followed(monkeypatch, capsys, lose_node)
    assert "".join(seen) == "one\n"


def test_a_log_that_never_appears_is_an_error(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    journal.revoke(run, 0, "cancelled", "cancelled before it started")
    assert submit.main(["logs", "n1", "-f"]) == 2
    assert "has no log: it has not started (state: failed)" in capsys.readouterr().err


def test_a_missing_attempt_is_an_error(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, start(run))
    assert submit.main(["logs", "n1", "-f", "--attempt", "4"]) == 2
    assert "has attempts 0" in capsys.readouterr().err


def test_the_batch_log_is_followed_until_an_attempt_begins(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = run.submissions / "7.log"
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: FakeSlurm())
    steps = (
        lambda: log.write_text("copying\nthe da"),
        lambda: log.write_text("copying\nthe data\n"),
        lambda: (start(run), write(run, "one\n")),
        lambda: end(run, 0),
    )
    assert followed(monkeypatch, capsys, *steps) == ["", "copying\n", "the data\n", "one\n", ""]


def test_the_batch_log_of_a_failed_set_up_comes_after_the_attempt_before(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end(run, start(run), cause="preempted", next="requeue", ended="2026-11-22T10:00:00+00:00")
    write(run, "first\n")
    slurm.job = Job("pending")

    def fail() -> None:
        (run.submissions / "7.log").write_text("No such file")
        slurm.job = Job("ended", "its job failed")

    assert "".join(followed(monkeypatch, capsys, fail)) == "first\nNo such file\n"
    assert submit.main(["logs", "n1"]) == 0
    assert capsys.readouterr().out == "No such file\n"
    assert submit.main(["logs", "n1", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "first\n"


def test_logs_of_all_ranks_are_followed_through_a_requeue(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_rank(rank: int, second: int, attempt: int = 0) -> None:
        with open(run.attempt(attempt).rank_log(rank), "a") as log:
            log.write(f"time=2026-01-02T03:04:{second:02d}.000Z level=info rank={rank}\n")

    start(run)
    slurm.job = Job("pending")
    steps = (
        lambda: (write_rank(1, 2), write_rank(0, 1)),
        lambda: (write_rank(12, 3), end(run, 0, cause="preempted", next="requeue")),
        lambda: start(run, restart=1),
        lambda: (write_rank(0, 4, 1), end(run, 1)),
    )
    seen = followed(monkeypatch, capsys, *steps, options="-f --all")
    assert [line.split("Z")[0] for line in "".join(seen).splitlines()] == [
        "rank 0   | time=2026-01-02T03:04:01.000",
        "rank 1   | time=2026-01-02T03:04:02.000",
        "rank 12  | time=2026-01-02T03:04:03.000",
        "rank 0   | time=2026-01-02T03:04:04.000",
    ]


def test_logs_of_all_ranks_have_colours_on_a_terminal_alone(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end(run, start(run))
    write(run, "one\n")
    run.attempt(0).node_log(0).write_text("two\n")
    plain = "node 0   | two\nrank 0   | one\n"
    assert submit.main(["logs", "n1", "--all"]) == 0
    assert capsys.readouterr().out == plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert submit.main(["logs", "n1", "--all"]) == 0
    coloured = capsys.readouterr().out
    assert coloured == "node 0   | two\n\x1b[36mrank 0   |\x1b[0m one\n"
