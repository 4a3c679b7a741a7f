"""Requeue, states and GPU-hours on a cluster without accounting."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core.processes import host
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import refresh
from jobs.status.run_state import read_runs
from tests.slurm.test_states import begun
from tests.support.fake_runs import table_rows
from tests.support.jobs import SMALL, STANDIN, ended_afterwards, starts, wait_until
from tests.support.lineage import read_steps
from tests.support.minicluster import MiniCluster
from tests.support.requeued import (
    RANKS,
    STEPS,
    Job,
    assert_figures_cover_all_attempts,
    assert_the_same,
    long_status,
    preempt,
    steps_lost,
    submitted,
)

pytestmark = pytest.mark.slow


def test_preempted_without_grace(plain: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    plain.ask("scontrol", "update", "partition=gpu", "GraceTime=0")
    try:
        job = submitted(plain, tmp_path)
        job.wait_for_step(30)
        preempt(plain)
        assert job.wait_for_end().state == "done"
    finally:
        plain.ask("scontrol", "update", "partition=gpu", "GraceTime=30")
    assert len(job.attempts()) == 2
    assert job.attempt(0)["cause"] in ("preempted", "lost")
    assert steps_lost(job.run) <= 20, "at most what lies between two checkpoints"
    assert_the_same(job.run, reference)


@pytest.mark.timeout(900)  # two starts of up to two minutes, and the wait between them
def test_a_time_limit_shorter_than_the_run(plain: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    # Ranks stop 45 s after the start of their job, or later if training began later: after three quarters of
    # what is left, which is at most 56 s of training. The run takes 60 s, so that one start is never enough.
    job = submitted(plain, tmp_path, time_limit_min=2, stop_lead_s=75, slow_s=60 / STEPS)
    attempt = 0
    while job.wait_until_closed(attempt)["next"]:
        attempt += 1
    assert job.wait_for_end().state == "done"
    ended = [job.attempt(attempt.number) for attempt in job.attempts()]
    assert len(ended) >= 2, "at least one requeue"
    assert {one["job_id"] for one in ended} == {job.id}
    assert [one["restart"] for one in ended] == list(range(len(ended)))
    assert [one["cause"] for one in ended] == ["deadline"] * (len(ended) - 1) + ["finished"]
    assert [one["checkpoint_before"] for one in ended[1:]] == [one["checkpoint_after"] for one in ended[:-1]]
    assert steps_lost(job.run) == 0
    assert_the_same(job.run, reference)
    assert_figures_cover_all_attempts(job)
    assert_usage_is_by_own_times(job)


def assert_usage_is_by_own_times(job: Job) -> None:
    """Without accounting: each start is counted, and each wait before one."""
    usage = long_status(job)["usage"]
    records = [job.attempt(attempt.number) for attempt in job.attempts()]
    started, ended = ([datetime.fromisoformat(one[word]) for one in records] for word in ("started", "ended"))
    asked = [datetime.fromisoformat(records[0]["submitted"]), *ended[:-1]]
    waits_s = [(there - since).total_seconds() for there, since in zip(started, asked, strict=True)]
    ran_s = sum((last - first).total_seconds() for first, last in zip(started, ended, strict=True))
    assert (usage["source"], usage["unit"], usage["attempts"]) == ("timestamps", "GPU-hours", len(records))
    assert [start["job_id"] for start in usage["starts"]] == [job.id] * len(records)
    assert usage["hours"] == pytest.approx(RANKS * ran_s / 3600)
    assert usage["queue_wait_s"] == pytest.approx(sum(waits_s))
    assert min(waits_s[1:]) >= 5, "the wait of a requeued job, at least"
    assert ran_s >= sum(record["step_s"] for _, record in read_steps(job.run, 0).values())


def test_without_accounting_everything_works(
    on_plain: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    sweep = ("sweep", "small.yaml", "--nodes", "1", "2", "--cluster", "slurm", "--wait")
    on_plain.submit(*sweep, cwd=tmp_path)
    told = json.loads(on_plain.submit("status", "--long", "--json", cwd=tmp_path))
    assert [run["state"] for run in told["runs"]] == ["done", "done"]
    assert [usage["source"] for usage in told["usage"]] == ["timestamps", "timestamps"]
    on_plain.submit("report", "small", cwd=tmp_path)
    report = read_json(tmp_path / "runs" / "small" / "report" / "report.json")
    costs = table_rows(report, "run_costs")
    assert [(row["attempts"], row["unit"], row["source"]) for row in costs] == [
        (1, "GPU-hours", "timestamps")
    ] * 2
    assert all(row["hours"] > 0 for row in costs)

    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    root = tmp_path / "cancelled"
    with ended_afterwards(root, SlurmScheduler()):
        run, job = begun(root)
        on_plain.submit("cancel", "demo", "--runs", str(root), cwd=tmp_path)
        (state,) = read_runs(root)
        assert (state.cause, state.message) == ("cancelled", f"by `submit.py cancel` of root on {host()}")
        on_plain.submit("resume", "demo", "--runs", str(root), "--cluster", "slurm", cwd=tmp_path)
        wait_until(lambda: len(starts(run)) == 2)
        (state,) = refresh(read_runs(root), SlurmScheduler())
        assert (state.state, state.attempts) == ("running", 2)
        assert state.job_id != job
        assert state.waits_for is None
        assert not run.usage.exists()
