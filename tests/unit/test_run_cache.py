"""The cache of parsed step records, damaged files, and sums of ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from analysis.read import cache, step_columns
from analysis.read.frames import load_frames
from analysis.read.json_columns import read_numbers
from disttrain.records.json_files import write_text
from tests.support.fake_runs import fake_run, fake_sweep


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are parsed, in order; every table is large enough for the cache."""
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 0)
    files: list[Path] = []

    def spy(path: Path, *arguments: object):
        files.append(path)
        return read_numbers(path, *arguments)

    monkeypatch.setattr(step_columns, "read_numbers", spy)
    return files


def cached_files(sweep: Path) -> list[Path]:
    return sorted((sweep / cache.FOLDER).glob("*"))


def test_unchanged_step_records_are_parsed_once(tmp_path: Path, parsed: list[Path]) -> None:
    sweep = fake_sweep(tmp_path, nodes=(1, 2), repeats=2)
    before = load_frames([sweep])
    assert len(parsed) == 4
    parsed.clear()
    again = load_frames([sweep])
    assert parsed == []
    pd.testing.assert_frame_equal(before.steps, again.steps)


def test_a_changed_file_is_parsed_anew_and_its_old_table_deleted(tmp_path: Path, parsed: list[Path]) -> None:
    """The time of the change and the size of the file stay, so that only its content differs."""
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    load_frames([tmp_path / "s"])
    (old,) = cached_files(tmp_path / "s")
    taken = path.stat()
    path.write_text(path.read_text().replace('"samples":8', '"samples":9', 1))
    os.utime(path, ns=(taken.st_atime_ns, taken.st_mtime_ns))
    assert load_frames([tmp_path / "s"]).steps["samples"].tolist()[:2] == [9, 8]
    (new,) = cached_files(tmp_path / "s")
    assert new != old


@pytest.mark.parametrize("damage", [b"", b"PAR1 not parquet", None])
def test_a_damaged_or_deleted_cache_is_made_again(
    tmp_path: Path, parsed: list[Path], damage: bytes | None
) -> None:
    fake_run(tmp_path / "s" / "run")
    before = load_frames([tmp_path / "s"]).steps
    (file,) = cached_files(tmp_path / "s")
    content = file.read_bytes()
    file.unlink() if damage is None else file.write_bytes(damage)
    pd.testing.assert_frame_equal(load_frames([tmp_path / "s"]).steps, before)
    assert file.read_bytes() == content


def test_a_reader_without_write_permission_works_without_the_cache(
    tmp_path: Path, parsed: list[Path]
) -> None:
    fake_run(tmp_path / "s" / "run")
    (tmp_path / "s" / cache.FOLDER).write_text("")  # a file: also root cannot write below it
    assert len(load_frames([tmp_path / "s"]).steps) == 110
    assert len(load_frames([tmp_path / "s"]).steps) == 110
    assert len(parsed) == 2


def test_problems_are_listed_with_file_and_line_also_from_the_cache(
    tmp_path: Path, parsed: list[Path]
) -> None:
    run = fake_run(tmp_path / "s" / "run")
    path = run.attempt(0).steps(0)
    lines = path.read_text().splitlines()
    lines[3:3] = ["not json", '{"step": "three"}', '{"start_s": 1.0}', "[]"]
    write_text(path, "\n".join(lines) + '\n{"step": 11')
    for _ in range(2):
        frames = load_frames([tmp_path / "s"])
        assert len(frames.steps) == 110
        expected = (
            "does not fit its schema: JSON parse error: Column(/step) changed from number to string in row 0"
        )
        assert [problem.removeprefix(f"{path}:") for problem in frames.problems] == [
            "4 is not a JSON record",
            f"5 {expected}",
            "7 is not a JSON record",
            " 1 records without `step` or `step_s`",
        ]
    assert len(parsed) == 1


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([0, 1, 2, 3], ""),
        ([0, 2], "no step records of ranks 1, 3 of 4"),
        ([], "no step records of all 4 ranks"),
        (None, "rank 1 of 4 recorded fewer measured steps than the others (40 of 100)"),
    ],
)
def test_ranks_without_records_are_listed(tmp_path: Path, kept: list[int] | None, expected: str) -> None:
    run = fake_run(tmp_path / "s" / "run", nodes=4, all_ranks=True)
    for rank in range(4):
        path = run.attempt(0).steps(rank)
        if kept is None and rank == 1:
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:50]))
        elif kept is not None and rank not in kept:
            path.unlink()
    frames = load_frames([tmp_path / "s"])
    listed = (f"{run.path}/attempts: {expected}",) if expected else ()
    assert frames.incomplete == listed
    assert frames.problems == ()


def test_a_damaged_run_is_listed_and_hides_no_other(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "good")
    bad = fake_run(tmp_path / "s" / "bad")
    bad.run_json.unlink()
    bad.metrics.unlink()
    bad.done.unlink()
    bad.attempt(0).steps(0).unlink()
    bad.attempt(0).steps(0).mkdir()
    frames = load_frames([tmp_path / "s"])
    assert dict(zip(frames.runs["run"], frames.runs["note"], strict=True)) == {
        "bad": "no metrics yet; run.json is missing",
        "good": "",
    }
    assert len(frames.steps) == 110
    (problem,) = frames.problems
    assert problem == f"{bad.attempt(0).steps(0)} is not a regular file"
