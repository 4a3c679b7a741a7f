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
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.script import render
from jobs.status.refresh import refresh
from jobs.status.run_state import read_runs
from jobs.submission.decide import JobChains, chains_of, ends_of, plan_actions
from jobs.submission.submit import carry_out
from sweeps.expand import SweepPlan
from tests.support.jobs import CODE, FakeScheduler, repeats, sweep_plan
from tests.support.scripts import SHARED as ROOT
from tests.support.scripts import batch, directives


class Queue:
    """Jobs that wait for the end of others (`afterany`), run in any order, and may be requeued."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.after: dict[str, tuple[str, ...]] = {}
        self.running: set[str] = set()
        self.ended: set[str] = set()
        self.most = 0
        """Most jobs at once since the last command."""

    def submit(self, jobs: int, limit: int) -> None:
        active = {job: after for job, after in self.after.items() if job not in self.ended}
        chains = JobChains(limit, ends_of(active))
        for _ in range(jobs):
            job = str(len(self.after))
            self.after[job] = chains.before(1)
            chains.add([job])

    def step(self) -> list[str]:
        """Some job starts, ends or is requeued; the jobs that started."""
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
            return [job]
        self.running.discard(job)
        if what == "end":
            self.ended.add(job)
        return []


@settings(max_examples=200, deadline=None)
@given(
    before=st.integers(0, 5),
    commands=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=5
    ),
    seed=st.integers(0, 1000),
)
def test_a_job_starts_only_below_the_limit(
    before: int, commands: list[tuple[int, int, int]], seed: int
) -> None:
    queue = Queue(seed)
    queue.after = {f"free{number}": () for number in range(before)}  # submitted without a limit
    limits: dict[str, int] = {}
    for jobs, limit, steps in commands:
        queue.submit(jobs, limit)
        for job in queue.after:  # the newest command counts for the jobs of earlier ones, if it allows more
            limits[job] = max(limit, limits.get(job, 0))
        for _ in range(steps):
            _check(queue, limits)
    while len(queue.ended) < len(queue.after):
        _check(queue, limits)


def _check(queue: Queue, limits: dict[str, int]) -> None:
    if len(queue.ended) == len(queue.after):
        return
    for job in queue.step():
        if not job.startswith("free"):
            assert len(queue.running) <= limits[job]


def test_as_many_run_as_the_limit_allows() -> None:
    chains = JobChains(3)
    assert [chains.before(1)] == [()]
    for job in "abc":
        assert chains.before(1) == ()
        chains.add([job])
    assert chains.before(1) == ("a",)
    chains.add(["d"])
    assert chains.before(1) == ("b",)


def test_jobs_above_the_limit_end_before_any_new_one_starts() -> None:
    chains = JobChains(2, ["a", "b", "c", "d"])
    first = chains.before(1)
    chains.add(["e"])
    assert (first, chains.before(1)) == (("a", "b", "c"), ("a", "b", "d"))
    assert ends_of({"a": [], "b": [], "c": [], "d": [], "e": first}) == ["a", "b", "d", "e"]


class Recorder(FakeScheduler):
    """Records what each batch waits for."""

    one_machine = False

    def __init__(self, array: int = 1) -> None:
        super().__init__()
        self.has_room = SubmitQuota(array=array)
        self.waits: list[tuple[list[str], list[str], int | None]] = []
        self.takes = 100

    def submit(self, batch: Batch) -> list[str]:
        if len(batch.submissions) > self.takes:
            raise LimitReached("the limit of tasks in an array")
        job_ids = super().submit(batch)
        self.waits.append((job_ids, list(batch.after), batch.at_once))
        return job_ids


def limited(plan: SweepPlan, cluster: FakeScheduler, root: Path, limit: int) -> None:
    with sweep_lock(root / plan.name):
        states = refresh(read_runs(root, plan.name), cluster, receipts=True)
        actions = plan_actions(plan, states, CODE)
        carry_out(actions, cluster, root, chains=chains_of(states, cluster, limit))


def test_a_later_command_counts_the_jobs_of_an_earlier_one(tmp_path: Path) -> None:
    cluster = Recorder()
    limited(sweep_plan("a", "b", "c"), cluster, tmp_path, 2)
    limited(sweep_plan("a", "b", "c", "d", "e", "f"), cluster, tmp_path, 2)
    assert [(ids[0].removeprefix("elsewhere:"), after) for ids, after, _ in cluster.waits] == [
        ("1", []),
        ("2", []),
        ("3", ["elsewhere:1"]),
        ("4", ["elsewhere:2"]),
        ("5", ["elsewhere:3"]),
        ("6", ["elsewhere:4"]),
    ]
    intent = journal.entry(RunDir(tmp_path / "demo" / "f"), 0).read("intent")
    assert intent is not None
    assert intent["after"] == ["elsewhere:4"]


def test_one_array_alone_is_limited_by_the_array_itself(tmp_path: Path) -> None:
    cluster = Recorder(array=100)
    limited(repeats(4, "a"), cluster, tmp_path, 2)
    assert [(len(ids), after, at_once) for ids, after, at_once in cluster.waits] == [(4, [], 2)]


def test_several_arrays_become_single_jobs_in_start_order(tmp_path: Path) -> None:
    cluster = Recorder(array=100)
    plan, wide = repeats(2, "a"), repeats(2, "b", nodes=2)
    in_turn = [run for pair in zip(plan.runs, wide.runs, strict=True) for run in pair]
    limited(dataclasses.replace(plan, runs=tuple(in_turn)), cluster, tmp_path, 1)
    assert cluster.batches == [["a-r0"], ["b-r0"], ["a-r1"], ["b-r1"]]
    assert [after for _, after, _ in cluster.waits] == [[], ["elsewhere:1"], ["elsewhere:2"], ["elsewhere:3"]]


def test_the_halves_of_an_array_that_was_too_large_follow_each_other(tmp_path: Path) -> None:
    cluster = Recorder(array=100)
    cluster.takes = 2
    limited(repeats(4, "a"), cluster, tmp_path, 2)
    assert [(len(ids), after, at_once) for ids, after, at_once in cluster.waits] == [
        (2, [], 2),
        (2, ["elsewhere:1", "elsewhere:2"], 2),
    ]


def test_a_limit_of_jobs_is_a_dependency_or_a_throttle_of_the_array() -> None:
    own = Profile.model_validate({"name": "x", "sbatch": {"dependency": "after:9"}})
    assert directives(render(batch(ROOT, runs=3, at_once=2)))["array"] == "0-2%2"
    assert directives(render(batch(ROOT, after=["7", "8_1"], at_once=2)))["dependency"] == "afterany:7:8_1"
    assert directives(render(batch(ROOT, own, after=["7"])))["dependency"] == "afterany:7,after:9"
    assert directives(render(batch(ROOT, own)))["dependency"] == "after:9"
    assert "dependency" not in directives(render(batch(ROOT, at_once=2)))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (["--max-running", "0"], "argument --max-running: '0' is not a whole number above 0"),
        (["--max-running", "2", "--serial"], "argument --serial: not allowed with argument --max-running"),
    ],
)
def test_a_bad_limit_is_one_line(given_: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["sweep", *given_]) == 2
    assert message in capsys.readouterr().err
