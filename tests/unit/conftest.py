"""What several unit tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Commands


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Commands(folder)
