"""Jobs that `cancel` ends, and jobs that go on."""

from __future__ import annotations

from pathlib import Path

from jobs.core import journal
from jobs.status.run_state import read_runs
from jobs.submission.cancel import cancel_runs
from tests.support.jobs import FakeSlurm
from tests.support.states import on_cluster


def test_cancel_leaves_jobs_of_another_cluster_and_reports_refusals(tmp_path: Path) -> None:
    for name in ("here", "there", "refused"):
        run = on_cluster(tmp_path, f"s/{name}", "there" if name == "there" else "here", handle=f"tag {name}")
        journal.write_receipt(run, 0, name)
    cluster = FakeSlurm("pending")
    cluster.is_cluster = "here"
    cluster.refused = {"refused": "scancel did not end job refused: no"}
    cancelled, failures = cancel_runs(read_runs(tmp_path), cluster)
    assert cluster.cancelled == ["here"]
    assert [state.name for state in cancelled] == ["here"]
    assert {path.name: reason for path, reason in failures.items()} == {
        "there": "its job is on cluster 'there': cancel it there",
        "refused": "scancel did not end job refused: no",
    }
    assert {s.name: s.state for s in read_runs(tmp_path)} == {
        "here": "failed", "there": "queued", "refused": "queued",
    }  # fmt: skip
