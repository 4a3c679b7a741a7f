"""Files of the run directory: complete or absent, one winner, strict JSON, damage that is named."""

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
            seen = set()
            while len(seen) < 3:
                text = path.read_text()
                assert text == text[0] * 200_000
                seen.add(text[0])
                assert writer.poll() is None
        finally:
            writer.kill()
            writer.wait()
        text = path.read_text()
        assert text == text[0] * 200_000


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_text_alone_and_names_the_file(tmp_path, monkeypatch, call):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/of-the-system")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_json(path, {"new": 1})
    assert message_of(raised.value) == f"the disk is full: {path}"
    assert (read_json(path), os.listdir(tmp_path)) == ({"old": 1}, ["a.json"])


def test_a_folder_is_created_only_where_it_is_missing(tmp_path, monkeypatch):
    path = tmp_path / "new" / "folder" / "a.json"
    write_json(path, {"first": 1})
    monkeypatch.setattr(os, "mkdir", None)
    write_json(path, {"second": 2})
    assert create_exclusive(path.with_name("b.json"), {})
    assert read_json(path) == {"second": 2}


def test_a_process_of_the_same_number_on_another_node_may_write_as_well(tmp_path, monkeypatch):
    path, replace = tmp_path / "a.json", os.replace

    def after_the_other(source, target):
        monkeypatch.setattr(os, "replace", replace)
        write_json(path, {"by": "the other"})
        replace(source, target)

    monkeypatch.setattr(os, "replace", after_the_other)
    write_json(path, {"by": "this one"})
    assert (read_json(path), os.listdir(tmp_path)) == ({"by": "this one"}, ["a.json"])


def test_exclusive_creation_has_one_winner(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path), str(me)], **pipes) for me in range(6)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    winner = {number: me for me, racer in enumerate(racers) for number in racer.communicate()[0].split()}
    assert {path.stem: read_json(path)["winner"] for path in tmp_path.iterdir()} == winner
    assert len(winner) == 50


def test_a_link_whose_answer_got_lost_is_the_winners(tmp_path, monkeypatch):
    link, path = os.link, tmp_path / "claim.json"

    def asked_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", asked_twice)
    assert [create_exclusive(path, {"by": number}) for number in (1, 2)] == [True, False]
    assert (read_json(path), os.listdir(tmp_path)) == ({"by": 1}, ["claim.json"])
    path.unlink()
    # a file system that does not count links
    monkeypatch.setattr(os, "link", lambda source, target: target.write_bytes(source.read_bytes()))
    assert create_exclusive(path, {"by": 1})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_json_is_strict_whatever_the_numbers(value):
    def nulled(item):
        if isinstance(item, list):
            return [nulled(entry) for entry in item]
        if isinstance(item, dict):
            return {key: nulled(entry) for key, entry in item.items()}
        return None if isinstance(item, float) and not math.isfinite(item) else item

    assert json.loads(to_json(value), parse_constant=pytest.fail) == nulled(value)


def test_values_that_json_does_not_have_are_an_error():
    with pytest.raises(TypeError):
        to_json({"path": object()})


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b'{"a": 1', "not valid JSON"), (b"[1]", "holds list"), (b"\xff", "not valid JSON")],
)
def test_a_corrupt_file_is_named(tmp_path, content, problem):
    path = tmp_path / "metrics.json"
    with pytest.raises(FileNotFoundError):
        read_json(path)
    assert read_json_or_none(path) is None
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=problem) as caught:
        read_json(path)
    assert str(caught.value).startswith(str(path))
    assert read_json_or_none(path) is None


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step"')
    assert read_jsonl(path) == [{"step": 1}]
