"""Every run is started exactly once, whichever process is killed at whichever time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records import collect_provenance
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.core import attempt, code_copy, journal, processes
from jobs.schedulers.interface import SubmitQuota
from jobs.schedulers.local import fifo_queue, scheduler, supervisor
from jobs.schedulers.local.scheduler import LocalScheduler, ticket_label
from jobs.status.run_state import read_state
from jobs.submission import submit as submission
from tests.support.jobs import (
    CODE,
    STANDIN,
    FakeScheduler,
    ended_afterwards,
    in_a_fork,
    killed_at,
    repeats,
    settled,
    starts,
    submit,
    sweep_plan,
    wait_for,
)

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path / "runs"


SUBMITTER = {
    "before run.json": (submission, "write_json", False),
    "run.json written": (submission, "write_json", True),
    "intent written": (journal, "write_intent", True),
    "place in the queue taken": (fifo_queue, "take", True),
    "process started": (scheduler, "start_detached", True),
    "submitted": (LocalScheduler, "submit", True),
    "receipt written": (journal, "write_receipt", True),
}


@pytest.mark.parametrize("point", SUBMITTER)
def test_submitter_killed(point: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweep_plan("a", "b")
    owner, name, after = SUBMITTER[point]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed_at(getattr(owner, name), after=after))
        pid = in_a_fork(lambda: submit(plan, LocalScheduler(), root))
        assert wait_for(pid) == -signal.SIGKILL
    submit(plan, LocalScheduler(), root)
    ended = settled(root)
    assert {state.state for state in ended.values()} == {"done"}, ended
    assert [starts(state.run) for state in ended.values()] == [[(0, 0)], [(0, 0)]]


class Batches(LocalScheduler):
    """Takes runs of one shape together, as Slurm does."""

    def quota(self) -> SubmitQuota:
        return SubmitQuota(array=3)


class ForkScheduler(Batches):
    """The local scheduler without the start of a new interpreter: its supervisors are forks of this process
    that start after a random time of up to 0.1 s. All that the journal and the queue see is real."""

    def _submit(self, run: RunDir, submission: int, record: object) -> str:
        ticket = fifo_queue.take(ticket_label(run, submission))
        job_id = f"{processes.host()}:{ticket}"
        if os.fork() == 0:
            os.setsid()
            os.closerange(3, 1024)  # the lock on the sweep among them, which a real one does not inherit
            time.sleep(random.SystemRandom().uniform(0, 0.1))
            arguments = [str(run.path), "--submission", str(submission), "--ticket", str(ticket)]
            try:
                supervisor.main([*arguments, "--job-id", job_id])
            finally:
                os._exit(0)
        return job_id


class InstantAgents:
    """Agents that note their start and complete at once."""

    exit_codes = {0: 0}  # noqa: RUF012

    def __init__(self, run: RunDir, attempt: object, submission: int, nodes: int) -> None:
        number = attempt.number  # type: ignore[attr-defined]
        with open(run.path / "starts", "a") as file:
            file.write(f"{number} 0 {os.getpid()}\n")
        write_json(run.metrics, {"status": "completed", "attempt": number})

    def watch(self, limit_s: float) -> None:
        return None


@pytest.fixture
def code_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made with the code where it lies: their supervisors are forks of this process."""
    monkeypatch.setattr(code_copy, "copy_code", lambda root, **_: {})


@pytest.fixture
def instant_agents(code_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs complete as soon as their supervisor starts agents, and nothing but the submission takes time."""
    monkeypatch.setattr(supervisor, "_Agents", InstantAgents)
    made = collect_provenance.collect()
    monkeypatch.setattr(collect_provenance, "collect", lambda: made)


BATCH = {
    "one of three announced": (journal, "write_intent", True, 1),
    "all announced": (LocalScheduler, "submit", False, 1),
    "one of three has its place in the queue": (fifo_queue, "take", True, 1),
    "submitted": (LocalScheduler, "submit", True, 1),
    "one of three receipts written": (journal, "write_receipt", True, 1),
    "the second of three receipts written": (journal, "write_receipt", True, 2),
    "a second batch announced": (journal, "write_intent", True, 4),
}


@pytest.mark.usefixtures("instant_agents")
@pytest.mark.parametrize("point", BATCH)
def test_submitter_of_a_batch_killed(point: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = repeats(3, "a", "b")
    owner, name, after, call = BATCH[point]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed_at(getattr(owner, name), after=after, call=call))
        assert wait_for(in_a_fork(lambda: submit(plan, ForkScheduler(), root))) == -signal.SIGKILL
    submit(plan, ForkScheduler(), root)
    ended = settled(root)
    assert {state.state for state in ended.values()} == {"done"}, ended
    assert [starts(state.run) for state in ended.values()] == [[(0, 0)]] * 6


SUPERVISOR = {
    "its turn has come": (supervisor, "open_attempt", False, 1),
    "claimed": (journal, "claim", True, 1),
    "attempt.json written": (supervisor, "open_attempt", True, 1),
    "ranks ended": (supervisor, "close_attempt", False, 0),
    "attempt.json closed": (attempt, "classify_exit", True, 0),
    "outcome written": (supervisor, "close_attempt", True, 0),
}


@pytest.mark.usefixtures("code_here")
@pytest.mark.parametrize("point", SUPERVISOR)
def test_supervisor_killed(point: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after depends on how far it came, but training is never done twice."""
    owner, name, after, submitted_again = SUPERVISOR[point]
    run = waiting_run(root)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed_at(getattr(owner, name), after=after))
        assert wait_for(in_a_fork(lambda: supervise(run))) == -signal.SIGKILL
    assert read_state(run).state == ("lost" if submitted_again else "done")
    actions = submit(sweep_plan("a"), LocalScheduler(), root)
    assert sum(action.submits for action in actions) == submitted_again
    settled(root)
    assert read_state(run).state == "done"
    assert len(starts(run)) == 1


def waiting_run(root: Path) -> RunDir:
    """A submitted run whose job has not come up yet."""
    submit(sweep_plan("a"), FakeScheduler(), root)
    return RunDir(root / "demo" / "a")


def supervise(run: RunDir, submission: int = 0) -> None:
    ticket = fifo_queue.take(ticket_label(run, submission))
    job = f"{processes.host()}:{ticket}"
    journal.write_receipt(run, submission, job)
    arguments = [str(run.path), "--submission", str(submission), "--ticket", str(ticket)]
    supervisor.main([*arguments, "--job-id", job])


@pytest.mark.usefixtures("code_here")
def test_a_job_that_comes_late_finds_itself_revoked(root: Path) -> None:
    run = waiting_run(root)
    submit(sweep_plan("a"), FakeScheduler(status="ended"), root)  # takes the first job for lost
    assert wait_for(in_a_fork(lambda: supervise(run, submission=0))) == 0
    assert starts(run) == []
    assert wait_for(in_a_fork(lambda: supervise(run, submission=1))) == 0
    assert starts(run) == [(0, 0)]


def test_one_claim_among_many(root: Path) -> None:
    run = waiting_run(root)
    me = processes.current_process().as_dict()
    pids = [
        in_a_fork(
            lambda: os._exit(journal.claim(run, 0, process=me, job_id=None, code_hash=CODE) is not None)
        )
        for _ in range(8)
    ]
    assert sorted(wait_for(pid) for pid in pids) == [0] * 7 + [1]


def test_two_submitters_at_once(root: Path) -> None:
    plan = sweep_plan("a", "b", "c")
    pids = [in_a_fork(lambda: submit(plan, LocalScheduler(), root)) for _ in range(2)]
    assert [wait_for(pid) for pid in pids] == [0, 0]
    ended = settled(root)
    assert [starts(state.run) for state in ended.values()] == [[(0, 0)]] * 3


@pytest.mark.slow
@pytest.mark.usefixtures("instant_agents")
def test_submitter_killed_at_random_times(root: Path) -> None:
    plan = repeats(2, "a", "b")
    folders: list[Path] = []

    def begin() -> int:
        return in_a_fork(lambda: submit(plan, ForkScheduler(), folders[-1]))

    folders.append(root / "timing")
    began = time.monotonic()
    assert wait_for(begin()) == 0
    whole_s = time.monotonic() - began
    kills = 0
    while kills < 25:
        folders.append(root / f"{len(folders):03d}")
        for _ in range(2):  # the second one finds what the first one left
            pid = begin()
            time.sleep(random.uniform(0, whole_s))
            os.kill(pid, signal.SIGKILL)
            kills += wait_for(pid) == -signal.SIGKILL
        assert wait_for(begin()) == 0
    for folder in folders:
        ended = settled(folder)
        assert sorted(ended) == ["a-r0", "a-r1", "b-r0", "b-r1"]
        assert [starts(state.run) for state in ended.values()] == [[(0, 0)]] * 4, ended
