"""`clean`: which runs are moved and which are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import write_json
from jobs.cli import clean
from jobs.core.sweep_lock import sweep_lock
from jobs.schedulers.base import Job
from tests.support.jobs import FakeSlurm
from tests.support.states import make_run, on_slurm
from tests.support.verbs import RUNS, STATES, ask, ask_json, states

pytestmark = pytest.mark.usefixtures("cluster")


def test_clean_moves_ended_runs_and_keeps_active_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "tiny/old", "done", code="0" * 12)
    before = files()
    dry = ask(capsys, "clean --failed --stale --dry-run")
    assert dry.count("would move") == 5
    assert files() == before
    ask(capsys, "clean --failed")
    assert set(states()) == {"planned", "queued", "running", "done", "old"}
    ask(capsys, "clean tiny --stale")
    ask(capsys, "clean done")
    assert set(states()) == {"planned", "queued", "running"}
    out = ask(capsys, "clean tiny")
    assert "left   tiny/queued: it is queued; cancel it first" in out
    assert "left   tiny/running" in out
    assert set(states()) == {"queued", "running"}
    assert files() == before, "something was lost"


def test_a_run_whose_job_was_cancelled_is_moved_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm("running")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: slurm)
    on_slurm(RUNS, "tiny/a", claimed=True)
    assert "left   tiny/a: it is running; cancel it first" in ask(capsys, "clean tiny")
    slurm.job = Job("ended", "its job was cancelled", "cancelled")
    assert "moved  tiny/a (cancelled)" in ask(capsys, "clean tiny")


def test_two_concurrent_cleans(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    make_run(RUNS, "tiny/n2", "failed")

    @contextlib.contextmanager
    def after_another(folder: Path) -> Iterator[None]:
        (folder / "n1").rename(RUNS.parent / "n1")
        with sweep_lock(folder):
            yield

    monkeypatch.setattr(clean, "sweep_lock", after_another)
    assert [run["run"] for run in ask_json(capsys, "clean --failed")] == ["tiny/n2"]


def files() -> list[tuple[str, bytes]]:
    """Name and content of every file of a run, wherever the run lies now."""
    found = [path for path in RUNS.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(("/".join(path.parts[path.parts.index("tiny") :]), path.read_bytes()) for path in found)


def test_a_cleaned_out_sweep_frees_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    write_json(RUNS / "tiny/sweep.json", {"base": {"optim": {"lr": 5.0}, "sweep": {"base_ranks": 1}}})
    out = ask_json(capsys, "clean tiny")
    assert [run["run"] for run in out] == ["tiny/n1"]
    assert Path(out[0]["to"]).with_name("sweep.json").exists()
    ask(capsys, "sweep tiny.yaml --nodes 1")
