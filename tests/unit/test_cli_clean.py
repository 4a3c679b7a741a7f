"""`clean`: which runs are moved and which are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import Job
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

    monkeypatch.setattr("jobs.core.lock.sweep_lock", after_another)
    assert [run["run"] for run in ask_json(capsys, "clean --failed")["moved"]] == ["n2"]


def files() -> list[tuple[str, bytes]]:
    """Name and content of every file of a run, wherever the run lies now."""
    found = [path for path in RUNS.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(("/".join(path.parts[path.parts.index("tiny") :]), path.read_bytes()) for path in found)


def test_a_cleaned_out_sweep_frees_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    write_json(RUNS / "tiny/sweep.json", {"base": {"optim": {"lr": 5.0}, "sweep": {"base_ranks": 1}}})
    out = ask_json(capsys, "clean tiny")
    assert [run["run"] for run in out["moved"]] == ["n1"]
    assert Path(out["moved"][0]["to"]).with_name("sweep.json").exists()
    ask(capsys, "sweep tiny.yaml --nodes 1")


def test_restore_undoes_the_last_clean(capsys: pytest.CaptureFixture[str]) -> None:
    code, script = ".code/0123456789abcdef", ".code/fedcba9876543210"
    for name in ("n1", "n2"):
        run = make_run(RUNS, f"tiny/{name}", "failed")
        record = read_json(run.run_json)
        record["provenance"]["code"]["path"] = code
        record["provenance"]["command"] = {"path": script}
        write_json(run.run_json, record)
    write_json(RUNS / "tiny/sweep.json", {"base": {}})
    for copy in (code, script):
        (RUNS / copy).mkdir(parents=True)
    write_json(RUNS / ".by-hand/7-0-0.json", {"run": "tiny/n2"})
    before = {path for path in RUNS.rglob("*") if path.name != ".lock"}
    ask(capsys, "clean tiny/n1")
    ask(capsys, "clean tiny/n2")
    assert not (RUNS / code).exists()
    assert "would restore  tiny/n2" in ask(capsys, "clean --restore --dry-run")
    assert states() == {}
    restored = ask_json(capsys, "clean --restore")
    assert restored["restored"] == [{"sweep": "tiny", "run": "n2", "to": "runs/tiny/n2"}]
    assert [run["path"] for run in restored["runs"]] == ["runs/tiny/n2"]
    assert list(states()) == ["n2"]
    assert (RUNS / code).is_dir()
    assert (RUNS / script).is_dir(), "the copy of a command's code"
    ask(capsys, "clean --restore tiny")
    after = {path for path in RUNS.rglob("*") if path.name != ".lock"}
    assert after == before | {RUNS / ".trash"}
    assert "the trash is empty" in ask(capsys, "clean --restore")


def test_a_run_is_not_restored_over_another(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    make_run(RUNS, "tiny/n2", "failed")
    write_json(RUNS / "tiny/sweep.json", {"base": {"optim": {"lr": 5.0}}})
    ask(capsys, "clean tiny")
    make_run(RUNS, "tiny/n1", "done")
    before = files()
    assert submit.main(["clean", "--restore"]) == 2
    assert "cannot restore tiny/n1: runs/tiny/n1 exists" in capsys.readouterr().err
    assert files() == before
    write_json(RUNS / "tiny/sweep.json", {"base": {"optim": {"lr": 0.5}}})
    assert submit.main(["clean", "--restore", "n2"]) == 2
    assert "has another base config: optim.lr was 5.0 and is now 0.5" in capsys.readouterr().err
    assert submit.main(["clean", "--restore", "tiny/n3"]) == 2
    assert "no run 'tiny/n3' in runs/.trash; existing runs: tiny/n" in capsys.readouterr().err


def test_purge_deletes_the_trash_alone(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    make_run(RUNS, "tiny/n2", "done")
    ask(capsys, "clean n1")
    before = files()
    assert "(runs: tiny/n1)" in ask(capsys, "clean --purge --dry-run")
    assert files() == before
    (RUNS / ".trash/.deleting-x").mkdir()  # of an interrupted call
    assert [each["runs"] for each in ask_json(capsys, "clean --purge")["deleted"]] == [["tiny/n1"]]
    assert list((RUNS / ".trash").iterdir()) == []
    assert list(states()) == ["n2"]
    assert "the trash is empty" in ask(capsys, "clean --purge")
