"""Opening an attempt while other processes write to the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import Attempt, RunDir
from jobs.core import journal
from jobs.core.attempt import open_attempt
from tests.support.jobs import FakeScheduler, submit, sweep_plan


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A submitted run that no job has taken up."""
    submit(sweep_plan("a"), FakeScheduler(), tmp_path)
    return RunDir(tmp_path / "demo" / "a")


def begin(run: RunDir, restart: int = 0) -> Attempt:
    attempt = open_attempt(run, 0, cluster="slurm", job_id="7", nodes=["n1"], restart=restart)
    assert attempt is not None
    return attempt


def test_a_stop_request_counts_from_the_claim_on(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = journal.claim

    def asked_at_once(*args: Any, **names: Any) -> int | None:
        assert not run.stop.exists(), "asked of an earlier submission"
        number = claim(*args, **names)
        run.stop.touch()
        return number

    monkeypatch.setattr(journal, "claim", asked_at_once)
    run.stop.touch()
    begin(run)
    assert run.stop.exists()


def test_a_lost_copy_may_still_be_writing(run: RunDir) -> None:
    lost = begin(run)
    (lost.path / ".node-01.oom.json.7.tmp").symlink_to("renamed-meanwhile")
    assert begin(run, restart=1).number == 1
    assert read_json(lost.record)["cause"] == "lost"
