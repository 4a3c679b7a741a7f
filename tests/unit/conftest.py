"""What several unit tests share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import selection
from jobs.fabric.description import Fabric
from jobs.fabric.detect import detect
from tests.support import nvml
from tests.support.commands import Commands
from tests.support.fabric_trees import tree
from tests.support.jobs import FakeScheduler
from tests.support.verbs import TINY


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Commands(folder)


@pytest.fixture
def leaves_the_group() -> Iterator[None]:
    """Ends the process group of one rank that strategies make, which would outlive the test."""
    import torch.distributed as dist  # most unit tests need no torch

    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """What the verbs of submit.py have for a cluster, in a folder with a config and no runs yet."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    made = FakeScheduler()
    monkeypatch.setattr(selection, "chosen_scheduler", lambda *_: made)
    monkeypatch.setattr(selection, "scheduler_to_resume", lambda *_: made)
    monkeypatch.setattr(selection, "available_scheduler", lambda name: made)
    monkeypatch.setattr("jobs.status.refresh.scheduler_named", lambda name: made)
    return made


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Puts a recorded NVML in the place of `pynvml`: called with changes to it, gives the stand-in."""

    def put(change: Callable[[Any], object] = lambda session: None) -> Any:
        session = nvml.load()
        change(session)
        fake = nvml.module(session)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return put


@pytest.fixture
def empty_pngs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty PNG files in reports: rendering them takes most of the time of a small report."""
    monkeypatch.setattr("analysis.report.png", lambda figure: b"")


@pytest.fixture(scope="session")
def shared_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file tree of a kind of `tests.support.fabric_trees`, built once. Tests must not change it."""
    return functools.cache(lambda kind: tree(kind, tmp_path_factory.mktemp("fabric") / kind))


@pytest.fixture(scope="session")
def fabric_of(shared_tree: Callable[[str], Path]) -> Callable[[str], Fabric]:
    """The description that detection makes of the shared tree of a kind."""
    return functools.cache(lambda kind: detect(shared_tree(kind)))
