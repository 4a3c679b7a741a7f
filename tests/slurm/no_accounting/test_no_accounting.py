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
from tests.support.requeued import QUICK, RANKS, STEPS, Job, assert_the_same, steps_lost, submitted

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)  # two starts of up to two minutes, and the wait between them
def test_a_time_limit_shorter_than_the_run(plain: MiniCluster, tmp_path: Path, reference: RunDir) -> None:
    # Ranks stop 30 s after the start of their job; if they begin later, after three quarters of what is left.
    # The steps of the first start would take longer than its job may.
    job = submitted(plain, tmp_path, time_limit_min=2, stop_lead_s=90, slow_s=2.0)
    first = job.wait_until_closed(0)
    assert job.wait_for_end().state == "done"
    records = [job.attempt(attempt.number) for attempt in job.attempts()]
    assert {one["job_id"] for one in records} == {job.id}
    stops = len(records) - 1  # on a busy machine the second start does not end in time either
    causes = [("deadline", restart) for restart in range(stops)] + [("finished", stops)]
    assert [(one["cause"], one["restart"]) for one in records] == causes
    assert stops > 0
    assert records[1]["checkpoint_before"] == first["checkpoint_after"] > QUICK
    assert steps_lost(job.run) == 0
    assert_the_same(job.run, reference)
    assert_figures_cover_all_attempts(job)
    assert_usage_is_by_own_times(job)


def assert_figures_cover_all_attempts(job: Job) -> None:
    """Sums and counts go on through requeues; the first steps after each start are left out."""
    metrics = read_json(job.run.metrics)
    kept = read_steps(job.run, 0)
    attempts = [number for number, _ in kept.values()]
    left_out = [step for step in kept if attempts[: step - 1][-2:].count(attempts[step - 1]) < 2]
    counted = [step for first, last in metrics["left_out"] for step in range(first, last + 1)]
    assert counted == left_out, "two steps after each start"
    assert metrics["measured_steps"] == STEPS - len(left_out)
    assert metrics["resumed_step"] == attempts.index(attempts[-1])
    durations = [record["step_s"] for _, record in kept.values()]
    assert sum(durations) <= metrics["seconds_total"] <= 3 * sum(durations)
    progress = read_json(job.run.progress)
    assert (progress["attempt"], progress["step"]) == (attempts[-1], STEPS)


def assert_usage_is_by_own_times(job: Job) -> None:
    """Without accounting: each start is counted, and each wait before one."""
    (usage,) = json.loads(job.cluster.submit("status", "--long", "--json", cwd=job.folder))["usage"]
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
    sweep = ("sweep", "small.yaml", "--nodes", "1", "--cluster", "slurm", "--wait")
    on_plain.submit(*sweep, cwd=tmp_path)
    told = json.loads(on_plain.submit("status", "--long", "--json", cwd=tmp_path))
    assert [run["state"] for run in told["runs"]] == ["done"]
    assert [usage["source"] for usage in told["usage"]] == ["timestamps"]
    on_plain.submit("report", "small", cwd=tmp_path)
    report = read_json(tmp_path / "runs" / "small" / "report" / "report.json")
    (row,) = table_rows(report, "run_costs")
    assert (row["attempts"], row["unit"], row["source"]) == (1, "GPU-hours", "timestamps")
    assert row["hours"] > 0

    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    root = tmp_path / "cancelled"
    with ended_afterwards(root, SlurmScheduler()):
        run, job = begun(root)
        on_plain.submit("cancel", "demo", "--runs", str(root), cwd=tmp_path)
        (state,) = read_runs(root)
        assert (state.cause, state.message) == ("cancelled", f"by `disttrain cancel` of root on {host()}")
        on_plain.submit("resume", "demo", "--runs", str(root), "--cluster", "slurm", cwd=tmp_path)
        wait_until(lambda: len(starts(run)) == 2)
        (state,) = refresh(read_runs(root), SlurmScheduler())
        assert (state.state, state.attempts) == ("running", 2)
        assert state.job_id != job
        assert state.waits_for is None
        assert not run.usage.exists()
