"""Writes beside the training loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_jsonl
from disttrain.telemetry import background_writer as module
from disttrain.telemetry.background_writer import BackgroundJsonLines, BackgroundWriter


class Disk:
    """Records what is written, and blocks until it is `answering`."""

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.reached = threading.Event()
        self.written: list[str] = []

    def write(self, content: str) -> None:
        self.reached.set()
        assert self.answering.wait(60)
        self.written.append(content)


@pytest.fixture
def writer() -> Iterator[BackgroundWriter]:
    made = BackgroundWriter()
    yield made
    made.wait()


def test_a_newer_state_replaces_one_that_waits_for_a_slow_disk(writer: BackgroundWriter) -> None:
    disk = Disk()
    writer.submit("progress", lambda: disk.write("first"))
    assert disk.reached.wait(60)
    for number in range(5):
        writer.submit("progress", lambda number=number: disk.write(f"progress {number}"))  # type: ignore[misc]
        writer.submit(number, lambda number=number: disk.write(f"scalar {number}"))  # type: ignore[misc]
    assert disk.written == []
    disk.answering.set()
    writer.wait()
    assert disk.written == ["first", "progress 4", *(f"scalar {number}" for number in range(5))]


def test_an_error_is_raised_once_and_the_next_write_runs(writer: BackgroundWriter) -> None:
    disk = Disk()
    disk.answering.set()

    def fail() -> None:
        raise OSError(5, "Input/output error")

    writer.submit("bad", fail)
    with pytest.raises(OSError, match="Input/output"):
        writer.wait()
    writer.submit("good", lambda: disk.write("good"))
    writer.wait()
    assert disk.written == ["good"]


def test_a_write_after_the_end_runs_too(writer: BackgroundWriter) -> None:
    """A run that fails while it ends writes its records twice."""
    disk = Disk()
    disk.answering.set()
    for name in ("first", "second"):
        writer.submit(name, lambda name=name: disk.write(name))  # type: ignore[misc]
        writer.wait()
    assert disk.written == ["first", "second"]


def test_lines_keep_their_order_and_none_is_lost(writer: BackgroundWriter, tmp_path: Path) -> None:
    lines = BackgroundJsonLines(tmp_path / "lines", writer)
    for number in range(5000):
        lines.add({"number": number})
    lines.close()
    assert [line["number"] for line in read_jsonl(tmp_path / "lines")] == list(range(5000))


def test_the_loop_waits_before_records_take_all_memory(
    writer: BackgroundWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 2 * module.BLOCK_BYTES)
    disk, lines = Disk(), BackgroundJsonLines(tmp_path / "lines", writer)
    writer.submit("slow", lambda: disk.write("slow"))
    full = "x" * module.BLOCK_BYTES
    for _ in range(2):
        lines.add(full)
    adding = threading.Thread(target=lines.add, args=(full,))
    adding.start()
    adding.join(0.2)
    assert adding.is_alive()
    disk.answering.set()
    adding.join(60)
    assert not adding.is_alive()
    assert len((tmp_path / "lines").read_text().splitlines()) == 3
