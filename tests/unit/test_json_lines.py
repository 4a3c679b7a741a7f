"""Lines that are appended to a file, also where the disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from disttrain.runtime import json_lines as module
from disttrain.runtime import log
from disttrain.runtime.json_lines import JsonLinesWriter


class Disk:
    """Takes so many bytes more."""

    def __init__(self, room: int, number: int = errno.ENOSPC) -> None:
        self.room, self.number = room, number

    def write(self, file: int, content: bytes) -> int:
        if self.room == 0:
            raise OSError(self.number, os.strerror(self.number))
        written = _write(file, bytes(content[: self.room]))
        self.room -= written
        return written


_write = os.write


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Disk]:
    def made(room: int, number: int = errno.ENOSPC) -> Disk:
        found = Disk(room, number)
        monkeypatch.setattr(module.os, "write", found.write)
        return found

    return made


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_found_no_room_is_written_once_there_is_some(
    disk: Callable[..., Disk], tmp_path: Path, number: int
) -> None:
    path = tmp_path / "new" / "lines"
    small, file = disk(room=9, number=number), JsonLinesWriter(path)
    with patch.object(log, "error") as failed, patch.object(log, "info") as told:
        for line in ("one", "two", "three"):
            file.add(line)
            file.flush()
        assert path.read_text() == '"one"\n"tw', "half a line is on the disk"
        assert failed.call_count == 1, "said once"
        assert not told.called
        small.room = 100
        file.flush()
        assert path.read_text() == '"one"\n"two"\n"three"\n'
        file.add("four")
        file.close()
    assert path.read_text() == '"one"\n"two"\n"three"\n"four"\n'
    assert (failed.call_count, told.call_count) == (1, 1)


def test_what_is_kept_is_bounded_and_what_is_lost_is_said(
    disk: Callable[..., Disk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 10)
    path = tmp_path / "lines"
    small, file = disk(room=2), JsonLinesWriter(path)
    file.add("one")
    file.flush()
    for line in ("two", "six", "ten"):  # the rest of `one`, and one line more
        file.add(line)
    small.room = 7
    with patch.object(log, "error") as failed:
        file.close()
    assert path.read_text() == '"one"\n"tw'
    assert failed.call_args.kwargs["lines"] == 3, "two that were not kept, and half of one that was"


def test_it_does_not_try_again_with_every_line(disk: Callable[..., Disk], tmp_path: Path) -> None:
    file = JsonLinesWriter(tmp_path / "lines")
    disk(room=0)
    with patch.object(module.os, "write", side_effect=module.os.write) as tried:
        for _ in range(10):
            file.add("x" * module.BLOCK_BYTES)
        assert tried.call_count == 1
        file.flush()
        assert tried.call_count == 2


def test_any_other_error_is_raised(disk: Callable[..., Disk], tmp_path: Path) -> None:
    file = JsonLinesWriter(tmp_path / "lines")
    disk(room=0, number=errno.EIO)
    file.add("one")
    with pytest.raises(OSError, match="Input/output"):
        file.flush()


def test_lines_reach_the_system_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = JsonLinesWriter(path)
    file.add("small")
    assert path.read_text() == ""
    file.add("x" * module.BLOCK_BYTES)
    assert path.read_text().count("\n") == 2
    file.close()
