"""At most N jobs at once by dependencies: over several commands, with requeues, and in what is submitted."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import submit as command_line
from disttrain.records.run_directory import RunDir
from jobs.core import journal
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import Batch, LimitReached, SubmitQuota
from jobs.status.refresh import refresh
from jobs.status.run_state import read_runs
from jobs.submission.decide import JobChains, chains_of, ends_of, plan_actions
from jobs.submission.submit import carry_out
from sweeps.expand import SweepPlan
from tests.support.jobs import CODE, FakeScheduler, repeats, sweep_plan


class Queue:
    """Jobs that wait for the end of others (`afterany`), run in any order, and may be requeued."""

    def __init__(self, seed: int, before: int) -> None:
        self.random = random.Random(seed)
        self.after: dict[str, tuple[str, ...]] = {f"free{number}": () for number in range(before)}
        """Jobs that each job waits for; `free` ones were submitted without a limit."""
        self.limits: dict[str, int] = {}
        """The newest command counts for the jobs of earlier ones, if it allows more."""
        self.running: set[str] = set()
        self.ended: set[str] = set()

    def submit(self, jobs: int, limit: int) -> None:
        active = {job: after for job, after in self.after.items() if job not in self.ended}
        chains = JobChains(limit, ends_of(active))
        for _ in range(jobs):
            job = str(len(self.after))
            self.after[job] = chains.before(1)
            chains.add([job])
        self.limits = {job: max(limit, self.limits.get(job, 0)) for job in self.after}

    def step(self) -> None:
        """Some job starts, below its limit, or ends or is requeued."""
        ready = [
            job
            for job, after in self.after.items()
            if job not in self.running | self.ended and self.ended.issuperset(after)
        ]
        choices = [*[("start", job) for job in ready], *[("end", job) for job in self.running]]
        choices += [("requeue", job) for job in self.running if self.random.random() < 0.2]
        what, job = self.random.choice(choices)
        if what == "start":
            self.running.add(job)
            assert job.startswith("free") or len(self.running) <= self.limits[job]
        else:
            self.running.discard(job)
        if what == "end":
            self.ended.add(job)


@settings(max_examples=200, deadline=None)
@given(
    before=st.integers(0, 5),
    commands=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=5
    ),
    seed=st.integers(0, 1000),
)
def test_a_job_starts_only_below_the_limit(before, commands, seed):
    queue = Queue(seed, before)
    for jobs, limit, steps in [*commands, (1, 1, 10_000)]:
        queue.submit(jobs, limit)
        for _ in range(steps):
            if len(queue.ended) < len(queue.after):
                queue.step()
    assert len(queue.ended) == len(queue.after)


def test_as_many_jobs_run_as_the_limit_allows():
    chains, waits = JobChains(3), []
    for job in "abcde":
        waits.append(chains.before(1))
        chains.add([job])
    assert waits == [(), (), (), ("a",), ("b",)]


def test_jobs_above_the_limit_end_before_any_new_one_starts():
    chains = JobChains(2, ["a", "b", "c", "d"])
    first = chains.before(1)
    chains.add(["e"])
    assert (first, chains.before(1)) == (("a", "b", "c"), ("a", "b", "d"))
    assert ends_of({"a": [], "b": [], "c": [], "d": [], "e": first}) == ["a", "b", "d", "e"]


class Recorder(FakeScheduler):
    """Records the runs of each batch, the numbers of the jobs that it waits for, and its own limit."""

    one_machine = False

    def __init__(self, array: int = 1, takes: int = 100) -> None:
        super().__init__()
        self.has_room = SubmitQuota(array=array)
        self.waits: list[tuple[list[str], str, int | None]] = []
        self.takes = takes

    def submit(self, batch: Batch) -> list[str]:
        if len(batch.submissions) > self.takes:
            raise LimitReached("the limit of tasks in an array")
        job_ids = super().submit(batch)
        numbers = " ".join(job_id.removeprefix("elsewhere:") for job_id in batch.after)
        self.waits.append((self.batches[-1], numbers, batch.at_once))
        return job_ids


def limited(plan: SweepPlan, cluster: FakeScheduler, root: Path, limit: int) -> None:
    with sweep_lock(root / plan.name):
        states = refresh(read_runs(root, plan.name), cluster, receipts=True)
        actions = plan_actions(plan, states, CODE)
        carry_out(actions, cluster, root, chains=chains_of(states, cluster, limit))


def test_a_later_command_counts_the_jobs_of_an_earlier_one(tmp_path):
    cluster = Recorder()
    limited(sweep_plan("a", "b", "c"), cluster, tmp_path, 2)
    limited(sweep_plan("a", "b", "c", "d", "e", "f"), cluster, tmp_path, 2)
    waits = {name: after for (name,), after, _ in cluster.waits}
    assert waits == {"a": "", "b": "", "c": "1", "d": "2", "e": "3", "f": "4"}
    assert (journal.entry(RunDir(tmp_path / "demo" / "f"), 0).read("intent") or {})["after"] == [
        "elsewhere:4"
    ]


REPEATS = [f"a-r{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("takes", "waits"),
    [(100, [(REPEATS, "", 2)]), (2, [(REPEATS[:2], "", 2), (REPEATS[2:], "1 2", 2)])],
    ids=["alone", "in two halves"],
)
def test_an_array_limits_itself(tmp_path, takes, waits):
    cluster = Recorder(array=100, takes=takes)
    limited(repeats(4, "a"), cluster, tmp_path, 2)
    assert cluster.waits == waits


def test_several_arrays_become_single_jobs_in_start_order(tmp_path):
    cluster = Recorder(array=100)
    plan, wide = repeats(2, "a"), repeats(2, "b", nodes=2)
    in_turn = [run for pair in zip(plan.runs, wide.runs, strict=True) for run in pair]
    limited(dataclasses.replace(plan, runs=tuple(in_turn)), cluster, tmp_path, 1)
    assert [(name, after) for (name,), after, _ in cluster.waits] == [
        ("a-r0", ""), ("b-r0", "1"), ("a-r1", "2"), ("b-r1", "3"),
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["--max-running 0", "--max-running 2 --serial"])
def test_a_bad_limit_is_refused(words, capsys):
    assert command_line.main(["sweep", *words.split()]) == 2
    assert "--max-running" in capsys.readouterr().err
