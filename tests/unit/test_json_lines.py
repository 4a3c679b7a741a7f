"""Lines that are appended to a file, beside the training loop, and where the disk is full."""

import errno
import os
import threading

import pytest

from disttrain.records.json_files import read_jsonl
from disttrain.runtime import json_lines, log
from disttrain.runtime.json_lines import FLUSHED_LINES, JsonLinesWriter
from disttrain.telemetry.background_writer import BackgroundWriter


class Disk:
    """Takes `room` bytes more, once it is `answering`."""

    def __init__(self, monkeypatch, room, number=errno.ENOSPC):
        self.room, self.number, self.calls = room, number, 0
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, file, content):
        self.calls += 1
        if self.room == 0:
            raise OSError(self.number, os.strerror(self.number))
        written = self._write(file, bytes(content[: self.room]))
        self.room -= written
        return written


@pytest.fixture
def events(monkeypatch):
    """Kind and number of lost lines of each line of the log."""
    found = []
    for kind in ("error", "info"):
        monkeypatch.setattr(
            log, kind, lambda message, kind=kind, **fields: found.append((kind, fields.get("lines")))
        )
    return found


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_lines_without_room_are_written_once_there_is_some(monkeypatch, tmp_path, events, number):
    path = tmp_path / "new" / "lines"
    disk, file = Disk(monkeypatch, 9, number), JsonLinesWriter(path)
    for line in ("one", "two", "three"):
        file.add(line)
        file.flush()
    assert path.read_text() == '"one"\n"tw', "half a line is on the disk"
    assert events == [("error", None)]
    disk.room = 100
    file.flush()
    assert path.read_text() == '"one"\n"two"\n"three"\n'
    file.close()
    assert events == [("error", None), ("info", None)]


def test_lines_that_wait_are_bounded_and_lost_ones_are_counted(monkeypatch, tmp_path, events):
    monkeypatch.setattr(json_lines, "KEPT_BYTES", 10)
    path = tmp_path / "lines"
    disk, file = Disk(monkeypatch, 2), JsonLinesWriter(path)
    file.add("one")
    file.flush()
    for line in ("two", "six", "ten"):  # the rest of `one`, and one line more
        file.add(line)
    disk.room = 7
    file.close()
    assert path.read_text() == '"one"\n"tw'
    assert events[-1] == ("error", 3), "two that were not kept, and half of one that was"


def test_a_full_disk_is_not_tried_again_with_every_line(monkeypatch, tmp_path):
    file, disk = JsonLinesWriter(tmp_path / "lines"), Disk(monkeypatch, 0)
    for _ in range(3 * FLUSHED_LINES):
        file.add("line")
    assert disk.calls == 3


def test_any_other_error_is_raised(monkeypatch, tmp_path):
    file = JsonLinesWriter(tmp_path / "lines")
    Disk(monkeypatch, 0, errno.EIO)
    file.add("one")
    with pytest.raises(OSError, match="Input/output"):
        file.flush()


def test_lines_reach_the_system_in_batches(tmp_path):
    path = tmp_path / "lines"
    file = JsonLinesWriter(path)
    for _ in range(FLUSHED_LINES - 1):
        file.add("line")
    assert path.read_text() == ""
    file.add("line")
    assert path.read_text().count("\n") == FLUSHED_LINES
    file.close()


@pytest.fixture
def writer():
    made = BackgroundWriter()
    yield made
    made.wait()


@pytest.fixture
def slow_disk(writer):
    """The event by which a write that the writer has begun ends."""
    answering, reached = threading.Event(), threading.Event()
    writer.submit("slow", lambda: reached.set() or answering.wait(60))
    assert reached.wait(60)
    yield answering
    answering.set()


def test_a_newer_state_replaces_one_that_waits(writer, slow_disk):
    written = []
    for number in range(5):
        for name in ("progress", number):
            writer.submit(name, lambda name=name, number=number: written.append((name, number)))
    assert written == []
    slow_disk.set()
    writer.wait()
    assert written == [("progress", 4), *((number, number) for number in range(5))]


def test_the_first_error_is_raised_once_and_later_writes_run(writer, slow_disk):
    written = []

    def fail(number):
        raise OSError(number, os.strerror(number))

    for number in (errno.EIO, errno.EBADF):
        writer.submit(number, lambda number=number: fail(number))
    slow_disk.set()
    with pytest.raises(OSError, match="Input/output"):
        writer.wait()
    for name in ("first", "second"):  # a run that fails while it ends writes its records twice
        writer.submit(name, lambda name=name: written.append(name))
        writer.wait()
    assert written == ["first", "second"]


def test_lines_keep_their_order_and_none_is_lost(writer, tmp_path):
    lines = JsonLinesWriter(tmp_path / "lines", writer.submit)
    for number in range(5000):
        lines.add({"number": number})
    lines.close()
    writer.wait()
    assert [line["number"] for line in read_jsonl(tmp_path / "lines")] == list(range(5000))


def test_a_disk_that_does_not_answer_delays_no_step(writer, slow_disk, tmp_path, monkeypatch, events):
    monkeypatch.setattr(json_lines, "KEPT_BYTES", 15)
    lines = JsonLinesWriter(tmp_path / "lines", writer.submit)
    for line in ("one", "two", "six"):
        lines.add(line)
        lines.flush()
    slow_disk.set()
    writer.wait()
    lines.add("ten")
    lines.close()
    writer.wait()
    assert read_jsonl(tmp_path / "lines") == ["one", "two", "ten"]
    assert events == [("error", 1)]
