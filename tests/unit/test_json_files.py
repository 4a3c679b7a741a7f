"""Files of the run directory: whole or not at all, one winner, strict JSON, honest about damage."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.errors import message_of
from disttrain.records.json_files import (
    CorruptFile,
    create_exclusive,
    read_json,
    read_json_or_none,
    read_jsonl,
    to_json,
    write_json,
    write_text,
)

WRITER = """
import itertools, pathlib, sys
from disttrain.records.json_files import write_text
for turn in itertools.count():
    write_text(pathlib.Path(sys.argv[1]), str(turn % 10) * 200_000, durable=turn % 2 == 0)
"""

RACER = """
import pathlib, sys
from disttrain.records.json_files import create_exclusive
print("ready", flush=True)
sys.stdin.readline()
folder, me = pathlib.Path(sys.argv[1]), int(sys.argv[2])
print(*[number for number in range(50) if create_exclusive(folder / f"{number}.json", {"winner": me})])
"""


def test_a_reader_never_sees_half_a_file_though_writers_are_killed(tmp_path):
    path = tmp_path / "metrics.json"
    write_text(path, "0" * 200_000)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        try:
            seen: set[str] = set()
            while len(seen) < 3:
                text = path.read_text()
                assert len(text) == 200_000
                assert text == text[0] * len(text)
                seen.add(text[0])
                assert writer.poll() is None
        finally:
            writer.kill()
            writer.wait()
        text = path.read_text()
        assert text == text[0] * 200_000


def test_a_failed_write_leaves_the_old_text_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def fail(*_):
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk"):
        write_json(path, {"new": 1})
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_is_created_only_where_it_is_missing(tmp_path, monkeypatch):
    path = tmp_path / "new" / "folder" / "a.json"
    write_json(path, {"first": 1})
    monkeypatch.setattr(os, "mkdir", None)
    write_json(path, {"second": 2})
    assert create_exclusive(path.with_name("b.json"), {})
    assert read_json(path) == {"second": 2}


def test_an_error_of_the_disk_names_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/a.json'") as raised:
        write_json(tmp_path / "a.json", {})
    assert message_of(raised.value) == f"the disk is full: {tmp_path}/a.json"


def test_a_process_of_the_same_number_on_another_node_may_write_as_well(tmp_path, monkeypatch):
    path, replace = tmp_path / "a.json", os.replace

    def after_the_other(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_json(path, {"by": "the other"})
        replace(source, target)

    monkeypatch.setattr(os, "replace", after_the_other)
    write_json(path, {"by": "this one"})
    assert read_json(path) == {"by": "this one"}
    assert os.listdir(tmp_path) == ["a.json"]


def test_exclusive_creation_has_one_winner(tmp_path):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), str(me)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(6)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = [racer.communicate()[0].split() for racer in racers]
    assert sorted(int(number) for won in wins for number in won) == list(range(50))
    for me, won in enumerate(wins):
        for number in won:
            assert read_json(tmp_path / f"{number}.json") == {"winner": me}
    assert len(os.listdir(tmp_path)) == 50  # no temporary file is left


def test_a_link_whose_answer_got_lost_is_the_winners(tmp_path, monkeypatch):
    link = os.link

    def asked_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    assert create_exclusive(tmp_path / "claim.json", {"by": 1})
    assert not create_exclusive(tmp_path / "claim.json", {"by": 2})
    assert read_json(tmp_path / "claim.json") == {"by": 1}
    assert os.listdir(tmp_path) == ["claim.json"]


def test_a_file_system_that_does_not_count_links_has_a_winner_too(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda source, target: target.write_bytes(source.read_bytes()))
    assert create_exclusive(tmp_path / "claim.json", {"by": 1})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_json_is_strict_whatever_the_numbers(value):
    def no_constant(name):
        raise AssertionError(name)

    def nulled(item):
        if isinstance(item, float) and not math.isfinite(item):
            return None
        if isinstance(item, list):
            return [nulled(entry) for entry in item]
        return {key: nulled(entry) for key, entry in item.items()} if isinstance(item, dict) else item

    assert json.loads(to_json(value), parse_constant=no_constant) == nulled(value)


def test_what_json_cannot_hold_is_an_error():
    with pytest.raises(TypeError):
        to_json({"path": object()})


def test_a_corrupt_file_is_named(tmp_path):
    path = tmp_path / "metrics.json"
    for content, words in [
        (b'{"a": 1', "not valid JSON"),
        (b"[1]", "holds list"),
        (b"\xff", "not valid JSON"),
    ]:
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match=words) as caught:
            read_json(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)
        assert read_json_or_none(path) is None
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing.json")
    assert read_json_or_none(tmp_path / "missing.json") is None


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step"')
    assert read_jsonl(path) == [{"step": 1}]
