"""`clean`: which runs are moved, which are kept, and the way back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, write_json
from jobs.core.lock import sweep_lock
from jobs.schedulers.interface import Job
from tests.support.jobs import FakeSlurm
from tests.support.states import make_run, on_slurm
from tests.support.verbs import RUNS, STATES, ask, ask_json, refused, states

pytestmark = pytest.mark.usefixtures("cluster")
SWEEP = RUNS / "tiny/sweep.json"


def cleaned(capsys: pytest.CaptureFixture[str], options: str, key: str = "moved") -> list[str]:
    return [each["run"] for each in ask_json(capsys, f"clean {options}")[key]]


def files() -> list[tuple[str, bytes]]:
    """Name and content of every file of a run, wherever the run lies now."""
    found = [path for path in RUNS.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(("/".join(path.parts[path.parts.index("tiny") :]), path.read_bytes()) for path in found)


def test_clean_moves_ended_runs_and_keeps_active_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "tiny/old", "done", code="0" * 12)
    before = files()
    failed = ["cancelled", "corrupt", "failed", "lost"]
    assert cleaned(capsys, "--failed --stale --dry-run") == [*failed, "old"]
    assert files() == before
    assert cleaned(capsys, "--failed") == failed
    assert cleaned(capsys, "tiny --stale") == ["old"]
    assert cleaned(capsys, "done") == ["done"]
    out = ask_json(capsys, "clean tiny")
    assert [run["run"] for run in out["moved"]] == ["planned"]
    assert [run["run"] for run in out["runs"]] == ["planned", "queued", "running"]
    assert set(states()) == {"queued", "running"}
    assert files() == before, "nothing is lost"


def test_a_run_whose_job_was_cancelled_is_moved_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm("running")
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: slurm)
    on_slurm(RUNS, "tiny/a", claimed=True)
    assert cleaned(capsys, "tiny") == []
    slurm.job = Job("ended", "its job was cancelled", "cancelled")
    assert cleaned(capsys, "tiny") == ["a"]


def test_two_concurrent_cleans(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("n1", "n2"):
        make_run(RUNS, f"tiny/{name}", "failed")

    @contextlib.contextmanager
    def after_another(folder: Path) -> Iterator[None]:
        (folder / "n1").rename(RUNS.parent / "n1")
        with sweep_lock(folder):
            yield

    monkeypatch.setattr("jobs.core.lock.sweep_lock", after_another)
    assert cleaned(capsys, "--failed") == ["n2"]


def test_the_last_run_takes_the_files_of_its_sweep_along(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("n1", "n2"):
        make_run(RUNS, f"tiny/{name}", "failed")
    write_json(SWEEP, {"base": {"optim": {"lr": 5.0}, "sweep": {"base_ranks": 1}}})
    ask(capsys, "clean tiny/n1")
    assert SWEEP.exists()
    (moved,) = ask_json(capsys, "clean tiny/n2")["moved"]
    assert Path(moved["to"]).with_name("sweep.json").exists()
    ask(capsys, "sweep tiny.yaml --nodes 1")  # of another base: the name is free


def test_restore_undoes_the_last_clean(capsys: pytest.CaptureFixture[str]) -> None:
    code, script = RUNS / ".code/0123456789abcdef", RUNS / ".code/fedcba9876543210"
    for name in ("n1", "n2"):
        run = make_run(RUNS, f"tiny/{name}", "failed")
        record = read_json(run.run_json)
        record["provenance"]["code"]["path"] = f".code/{code.name}"
        record["provenance"]["command"] = {"path": f".code/{script.name}"}
        write_json(run.run_json, record)
    write_json(SWEEP, {"base": {}})
    for copy in (code, script):
        copy.mkdir(parents=True)
    write_json(RUNS / ".by-hand/7-0-0.json", {"run": "tiny/n2"})
    before = {path for path in RUNS.rglob("*") if path.name != ".lock"}
    for name in ("n1", "n2"):
        assert code.exists(), "the other run refers to it"
        ask(capsys, f"clean tiny/{name}")
    assert not code.exists()
    assert cleaned(capsys, "--restore --dry-run", "restored") == ["n2"]
    assert states() == {}
    restored = ask_json(capsys, "clean --restore")
    assert restored["restored"] == [{"sweep": "tiny", "run": "n2", "to": "runs/tiny/n2"}]
    assert [run["path"] for run in restored["runs"]] == ["runs/tiny/n2"]
    assert (code.is_dir(), script.is_dir()) == (True, True)
    assert cleaned(capsys, "--restore tiny", "restored") == ["n1"]
    assert {path for path in RUNS.rglob("*") if path.name != ".lock"} == before | {RUNS / ".trash"}
    assert cleaned(capsys, "--restore", "restored") == []


def test_code_that_was_copied_again_meanwhile_stays(capsys: pytest.CaptureFixture[str]) -> None:
    run, code = make_run(RUNS, "tiny/n1", "failed"), RUNS / ".code/0123456789abcdef"
    record = read_json(run.run_json)
    record["provenance"]["code"]["path"] = f".code/{code.name}"
    write_json(run.run_json, record)
    code.mkdir(parents=True)
    ask(capsys, "clean tiny")
    write_json(code / "again", {})
    assert cleaned(capsys, "--restore", "restored") == ["n1"]
    assert (code / "again").exists()


def test_the_newest_copy_of_a_run_and_the_base_of_its_own_sweep_are_restored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rate in (1.0, 2.0):
        run = make_run(RUNS, "tiny/n1", "failed")
        write_json(SWEEP, {"base": {"optim": {"lr": rate}}})
        write_json(run.path / "note.json", {"rate": rate})
        ask(capsys, "clean tiny")
        (newest,) = (path for path in (RUNS / ".trash").iterdir() if not path.name.startswith("x"))
        os.rename(newest, newest.with_name(f"x{rate}"))  # two calls of one second have other names
    ask(capsys, "clean --restore n1")
    assert read_json(RUNS / "tiny/n1/note.json") == {"rate": 2.0}
    assert read_json(SWEEP)["base"] == {"optim": {"lr": 2.0}}


def test_a_run_is_not_restored_over_another_or_into_another_base(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("n1", "n2"):
        make_run(RUNS, f"tiny/{name}", "failed")
    write_json(SWEEP, {"base": {"optim": {"lr": 5.0}}})
    ask(capsys, "clean tiny")
    make_run(RUNS, "tiny/n1", "done")
    before = files()
    assert "cannot restore tiny/n1: runs/tiny/n1 exists" in refused(capsys, "clean --restore")
    assert files() == before, "n2 stays, too"
    write_json(SWEEP, {"base": {"optim": {"lr": 0.5}}})
    message = refused(capsys, "clean --restore n2")
    assert "has another base config: optim.lr was 5.0 and is now 0.5" in message
    assert "did you mean 'tiny/n2'?" in refused(capsys, "clean --restore tiny/n3")


def test_purge_deletes_the_trash_alone(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    make_run(RUNS, "tiny/n2", "done")
    ask(capsys, "clean n1")
    before = files()
    assert [each["runs"] for each in ask_json(capsys, "clean --purge --dry-run")["deleted"]] == [["tiny/n1"]]
    assert files() == before
    (RUNS / ".trash/.deleting-x").mkdir()  # of an interrupted call
    assert [each["runs"] for each in ask_json(capsys, "clean --purge")["deleted"]] == [["tiny/n1"]]
    assert (list((RUNS / ".trash").iterdir()), list(states())) == ([], ["n2"])
    assert ask_json(capsys, "clean --purge")["deleted"] == []
