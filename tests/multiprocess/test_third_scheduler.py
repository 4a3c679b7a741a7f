"""The interface of a scheduler is enough for a third one: `tests.support.schedulers.spool`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobs.schedulers
import submit
from disttrain.records.run_directory import RunDir
from tests.support import schedulers
from tests.support.jobs import SMALL, STANDIN, settled, starts, states, wait_until
from tests.support.verbs import ask, ask_json

pytestmark = pytest.mark.multiprocess
_ROOT = Path("runs")


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a scheduler whose package lies beside `jobs.schedulers.slurm`."""
    monkeypatch.setattr(jobs.schedulers, "__path__", [*jobs.schedulers.__path__, *schedulers.__path__])
    monkeypatch.setenv("SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("CODE", str(Path(__file__).parents[2]))
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN))
    monkeypatch.chdir(tmp_path)
    Path("spool").mkdir()
    Path("small.yaml").write_text(SMALL)
    jobs.schedulers.names.cache_clear()
    yield tmp_path / "spool"
    jobs.schedulers.names.cache_clear()


def sweep(mode: str, *flags: str) -> list[RunDir]:
    words = ["sweep", "small.yaml", "--cluster", "spool", "--nodes", "1", "--set", f"job.env.STANDIN={mode}"]
    assert submit.main([*words, *flags]) == 0
    return [state.run for state in states(_ROOT).values()]


def test_a_sweep_its_states_and_its_report_job(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = sweep("complete", "train.seed=0,1")
    assert {state.state for state in settled(_ROOT).values()} == {"done"}
    assert [starts(run) for run in runs] == [[(0, 0)], [(0, 0)]]
    capsys.readouterr()
    assert [run["cluster"] for run in ask_json(capsys, "status")["runs"]] == ["spool", "spool"]
    capsys.readouterr()
    sweep("complete", "train.seed=0,1")
    assert "2 runs: 2 done" in capsys.readouterr().out
    wait_until((_ROOT / "small" / "report" / "report.html").exists)


def test_a_cancelled_run_is_resumed(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = sweep("leave-once", "--no-report")
    wait_until(lambda: starts(run))
    ask(capsys, "cancel small")
    assert {state.displayed_state for state in settled(_ROOT).values()} == {"cancelled"}
    (run.path / "go").touch()
    ask(capsys, "resume small --no-report")
    assert {state.state for state in settled(_ROOT).values()} == {"done"}
    assert starts(run) == [(0, 0), (1, 0)]


def test_a_preempted_run_is_requeued_under_its_job_id(spool: Path) -> None:
    (run,) = sweep("leave-once", "--no-report")
    wait_until(lambda: starts(run))
    os.kill(int((spool / "agent").read_text()), signal.SIGUSR1)
    wait_until(lambda: len(starts(run)) == 2)
    (run.path / "go").touch()
    (state,) = settled(_ROOT).values()
    assert (state.state, starts(run)) == ("done", [(0, 0), (1, 0)])
