"""Stop requests, folder of checkpoints and mark of a save, for a script of the user."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from disttrain.integrations import checkpoint_dir, loop, saved, step_records, stop_requested
from disttrain.integrations.step_records import StepRecords
from disttrain.records.run_directory import CHECKPOINT_DIR, SAVED, STOP_SIGNAL
from disttrain.runtime import torch_version
from disttrain.runtime.stop_signals import StopSignals

ROOT = Path(__file__).parents[2]


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[StopSignals]:
    fresh = StopSignals()
    fresh.counted = (signal.SIGTERM,)
    monkeypatch.setattr(loop, "_signals", fresh)
    before = signal.getsignal(signal.SIGTERM)
    yield fresh
    signal.signal(signal.SIGTERM, before)


class Tensor:
    def __init__(self, values: list[float], dtype: str) -> None:
        assert dtype == "float64"
        self.values = values

    def tolist(self) -> list[float]:
        return self.values


class OldTorch:
    """What the functions may use: each name exists in torch 2.2. Another rank, whose requests are given."""

    def __init__(self, other: Callable[[], bool], call_s: float = 0.0) -> None:
        self.other, self.call_s = other, call_s
        self.groups: list[str] = []
        self.reductions = 0
        self.torch = SimpleNamespace(tensor=Tensor, float64="float64")
        self.dist = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_world_size=lambda: 2,
            new_group=self.new_group,
            all_reduce=self.all_reduce,
            group=SimpleNamespace(WORLD=object()),
            ReduceOp=SimpleNamespace(MAX="max"),
        )

    def new_group(self, backend: str) -> object:
        self.groups.append(backend)
        return self.groups

    def all_reduce(self, tensor: Tensor, op: str, group: object) -> None:
        assert (op, group) == ("max", self.groups)
        self.reductions += 1
        theirs = [float(self.other()), self.call_s]
        tensor.values = [*map(max, tensor.values, theirs)]

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setitem(sys.modules, "torch", self.torch)
        patch.setitem(sys.modules, "torch.distributed", self.dist)
        patch.setattr(loop, "_agreement", loop._Agreement())


def test_the_import_records_the_signal_of_the_job_and_loads_no_torch(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys
        from disttrain.integrations import stop_requested
        assert not {"torch", "pydantic", "numpy"} & sys.modules.keys()
        assert not stop_requested()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert stop_requested()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """
    env = {**os.environ, "PYTHONPATH": str(ROOT), STOP_SIGNAL: "SIGUSR2"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)


def test_a_handler_that_a_framework_installed_is_replaced(signals: StopSignals) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    loop.handle_stop_signal()
    signal.raise_signal(signal.SIGTERM)
    assert signals.received


@pytest.mark.parametrize("where", ["here", "elsewhere", "nowhere"])
def test_all_ranks_stop_where_one_was_asked_to(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    old = OldTorch(lambda: where == "elsewhere")
    old.install(monkeypatch)
    if where == "here":
        signals.record(signal.SIGTERM)
    assert [stop_requested(), stop_requested()] == [where != "nowhere"] * 2
    assert old.groups == ["gloo"]


@pytest.mark.parametrize(("call_s", "reductions"), [(2.0, 100), (1 / 4, 25), (0.0, 2)])
def test_ranks_with_short_steps_compare_their_requests_about_once_a_second(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch, call_s: float, reductions: int
) -> None:
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: 0.0))
    old = OldTorch(lambda: False, call_s)
    old.install(monkeypatch)
    assert not any(stop_requested() for _ in range(100))
    assert old.reductions == reductions


def test_a_new_process_group_is_compared_in_a_group_of_its_own(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = OldTorch(lambda: False, call_s=2.0)
    old.install(monkeypatch)
    stop_requested()
    old.dist.group.WORLD = object()
    stop_requested()
    assert old.groups == ["gloo", "gloo"]


def test_the_folder_of_checkpoints_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHECKPOINT_DIR, raising=False)
    by_hand = checkpoint_dir(tmp_path / "by" / "hand")
    monkeypatch.setenv(CHECKPOINT_DIR, str(tmp_path / "of job"))
    of_job = checkpoint_dir(by_hand)
    assert [path for path in (by_hand, of_job) if path.is_dir()] == [
        tmp_path / "by" / "hand",
        tmp_path / "of job",
    ]


@pytest.mark.parametrize(("rank", "touches"), [("0", True), ("1", False), (None, True)])
def test_rank_0_marks_a_save_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str | None, touches: bool
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv(SAVED, raising=False)
    saved()  # outside of a job
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv(SAVED, str(tmp_path / "saved"))
    saved()
    assert (tmp_path / "saved").exists() == touches


def test_beside_an_older_torch_no_step_is_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch_version, "LOWEST", "99.0")
        older = runpy.run_path(step_records.__file__)["StepRecords"]()
    older.begin(None, None, steps=1, samples_per_step=1)
    older.step_done()
    assert "the steps are not recorded: " in (text := capsys.readouterr().err)
    assert "need 99.0 or newer" in text


def test_steps_that_cannot_be_measured_are_not_recorded_and_the_training_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = StepRecords()
    records.begin(None, None, steps=float("inf"), samples_per_step=1)
    records.step_done()
    records.leave_steps()
    records.validated(0.5, {})
    records.await_batch()
    records.close()
    assert capsys.readouterr().err == (
        "disttrain: the steps are not recorded: the trainer has no last step\n"
    )
