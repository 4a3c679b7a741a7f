"""What several unit tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.cli import cancel, place
from tests.support.commands import Commands
from tests.support.jobs import NoCluster
from tests.support.verbs import TINY


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Commands(folder)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NoCluster:
    """What the verbs of submit.py have for a cluster, in a folder with a config and no runs yet."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    made = NoCluster()
    for module in (place, cancel):
        monkeypatch.setattr(module, "choose", lambda *_, **__: made)
    return made
