"""Waiting for another node ends with the job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import write_json
from jobs.core import requeue_policy
from jobs.node import waiting
from jobs.node.allocation import AllocationFacts
from jobs.node.waiting import JobEnded, poll_until
from jobs.schedulers.slurm.allocation import SlurmAllocation
from jobs.submission import sbatch_job

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LONG_S = 60.0


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sends a signal to this process, which blocks it."""
    monkeypatch.setattr(waiting, "_POLL_S", 0.001)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    yield lambda number: signal.pthread_kill(threading.get_ident(), number)
    while signal.sigtimedwait(SIGNALS, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def scheduler(*answers: AllocationFacts | None) -> Mock:
    return Mock(restart=1, facts=Mock(side_effect=answers))


def facts(*, running: bool = True, restarts: int = 1) -> AllocationFacts:
    return AllocationFacts(running, restarts, None)


def test_polling_returns_a_value_or_none_after_the_timeout() -> None:
    assert poll_until(lambda: "word", LONG_S, None) == "word"
    assert poll_until(lambda: None, 0, None) is None


def test_delays_between_polls_grow_and_differ_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes that read a file of node 0 ten times a second would overload the file system."""
    slept: list[float] = []
    monkeypatch.setattr(waiting.time, "sleep", slept.append)
    answers = iter([*[None] * 20, "word"])
    assert poll_until(lambda: next(answers), LONG_S, None) == "word"
    expected = [min(waiting._LONGEST_POLL_S, waiting._POLL_S * 1.4**number) for number in range(20)]
    assert slept == pytest.approx(expected, rel=0.25)
    assert slept[-1] > 10 * slept[0]
    assert len(set(slept[-5:])) == 5, "the longest delays have a random part"


@pytest.mark.parametrize(
    ("number", "job", "code"),
    [
        (signal.SIGTERM, None, requeue_policy.EXIT_FAILED),
        (signal.SIGINT, scheduler(), requeue_policy.EXIT_FAILED),
        (signal.SIGTERM, scheduler(facts(running=False)), requeue_policy.EXIT_FAILED),
        (signal.SIGTERM, scheduler(facts(running=False, restarts=2)), requeue_policy.EXIT_DONE),
        (signal.SIGTERM, scheduler(facts(restarts=2)), requeue_policy.EXIT_DONE),
    ],
    ids=["nobody to ask", "interrupted", "ended", "taken back", "begun again"],
)
def test_a_job_that_is_being_ended_raises(
    send: Callable[[int], None], number: int, job: Mock | None, code: int
) -> None:
    send(number)
    with pytest.raises(JobEnded, match="while this node waited for another one") as left:
        poll_until(lambda: None, LONG_S, job)
    assert left.value.exit_code == code


@pytest.mark.parametrize("answer", [facts(), None], ids=["running", "silent"])
def test_a_warning_stays_pending(
    send: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, answer: AllocationFacts | None
) -> None:
    """And the same signal, sent again, may be the end: Slurm is asked again."""
    monkeypatch.setattr(waiting, "_QUERY_INTERVAL_S", 0.0)
    job = scheduler(answer, answer, facts(running=False))
    send(signal.SIGTERM)
    with pytest.raises(JobEnded):
        poll_until(lambda: None, LONG_S, job)
    assert job.facts.call_count == 3
    assert signal.SIGTERM in signal.sigpending()


def test_the_scheduler_is_queried_rarely_and_only_after_a_signal(send: Callable[[int], None]) -> None:
    job, looked = scheduler(facts()), 0

    def look() -> str | None:
        nonlocal looked
        looked += 1
        if looked == 2:
            send(signal.SIGUSR1)
        if looked == 4:
            assert job.facts.call_count == 0, "no such signal ends a job"
            send(signal.SIGTERM)
        return "word" if looked == 9 else None

    assert poll_until(look, LONG_S, job) == "word"
    assert job.facts.call_count == 1


def test_a_job_by_hand_without_an_answer_of_node_0(
    send: Callable[[int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SlurmAllocation({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "SLURM_NODEID": "1"})
    job.facts = lambda: facts(running=False)  # type: ignore[method-assign]
    send(signal.SIGTERM)
    planned = sbatch_job._wait_for_plan(job, tmp_path)
    assert planned == {"run": None, "exit": requeue_policy.EXIT_FAILED}
    assert "nothing to do: the job was ended while this node waited" in capsys.readouterr().out
    write_json(sbatch_job.plan_file(job, tmp_path), {"run": "a/b"})
    assert sbatch_job._wait_for_plan(job, tmp_path) == {"run": "a/b"}
