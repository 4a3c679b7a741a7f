"""Locks of folders on file systems that cannot lock."""

from __future__ import annotations

import errno
import fcntl
import os
from unittest.mock import Mock

import pytest

import submit
from disttrain.errors import ConfigError
from jobs.core.code_copy import hold_copies
from jobs.core.lock import sweep_lock
from tests.support.verbs import RUNS


@pytest.fixture
def lustre(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that is mounted without `flock`."""
    refused = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=refused))


@pytest.mark.usefixtures("lustre")
def test_a_file_system_without_locks_is_named(tmp_path):
    for folder, locked in ((tmp_path, sweep_lock(tmp_path)), (tmp_path / ".code", hold_copies(tmp_path))):
        with (
            pytest.raises(ConfigError, match=f"^cannot lock '{folder}/.lock': Function not implemented"),
            locked,
        ):
            pass


@pytest.mark.usefixtures("cluster", "lustre")
def test_a_sweep_without_locks_writes_nothing(capsys):
    assert submit.main(["sweep", "tiny.yaml"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot lock 'runs/tiny/.lock'")
    assert [path.name for path in RUNS.rglob("*") if path.is_file()] == [".lock"]


def test_a_lock_that_is_held_names_its_holder(tmp_path):
    with (
        sweep_lock(tmp_path / "demo"),
        pytest.raises(ConfigError, match=rf"'demo' is being submitted by pid {os.getpid()} on "),
        sweep_lock(tmp_path / "demo", wait_s=0.0),
    ):
        pass
