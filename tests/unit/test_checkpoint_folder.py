"""The folder of checkpoints: each is complete or absent, and the last good one is never deleted."""

import errno
import os

import pytest

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint.folder import (
    CommittedCheckpoint,
    DamagedCheckpoint,
    mismatched_files,
    read_manifest,
)
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import MANIFEST, committed_path, committed_paths
from disttrain.records.json_files import read_json, write_json
from tests.support.manifests import manifest

CONTENT = b"weights" * 100


def write(folder, step, valid_loss=None, attempt=0):
    temporary = folders.temporary_path(folder, step, attempt)
    temporary.mkdir(parents=True)
    for name in ("a", ".metadata"):
        (temporary / name).write_bytes(CONTENT)
    files = {name: folders.file_digest(temporary / name) for name in ("a", ".metadata")}
    update = {"files": files, "attempt": attempt}
    return folders.commit(temporary, manifest(step, valid_loss).model_copy(update=update))


def change(path, **values):
    """Change values of a manifest; `...`: without the value."""
    changed = read_json(path / MANIFEST) | values
    write_json(path / MANIFEST, {name: value for name, value in changed.items() if value is not ...})


def mismatched(path):
    found = read_manifest(path)
    return mismatched_files(CommittedCheckpoint(path, found), found.files)


def test_a_commit_appears_complete_under_its_step_and_replaces_nothing(tmp_path):
    path = write(tmp_path, 10)
    assert (os.listdir(tmp_path), committed_paths(tmp_path), mismatched(path)) == (
        ["step-00000010"],
        [path],
        [],
    )
    with pytest.raises(OSError, match=r"not empty|exists"):
        write(tmp_path, 10, attempt=1)
    assert read_manifest(path).attempt == 0


def test_a_flipped_bit_is_seen(tmp_path):
    path = write(tmp_path, 10)
    (path / "a").write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    assert mismatched(path) == ["a"]


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (lambda path: (path / "a").write_bytes(CONTENT[:-1]), DamagedCheckpoint, "a has 699 bytes"),
        (lambda path: (path / "a").unlink(), DamagedCheckpoint, "No such file"),
        (lambda path: (path / MANIFEST).unlink(), DamagedCheckpoint, "No such file"),
        (lambda path: (path / MANIFEST).write_text(""), DamagedCheckpoint, "not valid JSON"),
        (lambda path: change(path, step=9), DamagedCheckpoint, "is of step 9"),
        (lambda path: change(path, compression="zstd"), ConfigError, "other code.*compression"),
        (lambda path: change(path, torch=...), ConfigError, "other code.*torch"),
        (lambda path: change(path, step="ten"), ConfigError, "other code.*step"),
    ],
)
def test_damage_is_told_from_a_manifest_of_other_code(tmp_path, damage, error, named):
    path = write(tmp_path, 10)
    damage(path)
    with pytest.raises(error, match=named):
        read_manifest(path)


def test_only_a_folder_that_is_named_for_a_step_is_compared_with_it(tmp_path):
    assert read_manifest(write(tmp_path, 10).rename(tmp_path / "step-00000010-copy")).step == 10


def test_a_file_system_in_trouble_is_no_damage(tmp_path, monkeypatch):
    """It would otherwise cost the newest checkpoint, which is intact."""
    path = write(tmp_path, 10)
    found = CommittedCheckpoint(path, read_manifest(path))

    def stale(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(folders, "file_digest", stale)
    with pytest.raises(OSError, match="Stale"):
        mismatched_files(found, ["a"])
    monkeypatch.setattr(folders, "read_json", stale)
    with pytest.raises(OSError, match="Stale"):
        read_manifest(path)
    assert committed_paths(tmp_path) == [path]


def test_quarantine_keeps_every_one(tmp_path):
    for _ in range(2):
        folders.quarantine(write(tmp_path, 10))
    assert sorted(os.listdir(tmp_path)) == ["step-00000010.damaged", "step-00000010.damaged-2"]
    assert committed_paths(tmp_path) == []


@pytest.mark.parametrize(
    ("keep", "attempt", "steps"),
    [
        (2, None, [60, 50, 40, 20]),  # the newest readable ones, and the best
        (1, 1, [60, 50, 30, 20, 10]),  # of attempt 1 alone
    ],
)
def test_deletion_keeps_the_newest_the_best_and_those_that_cannot_be_read(tmp_path, keep, attempt, steps):
    for step, loss, by in [
        (10, 3.0, 0),
        (20, 1.0, 0),
        (30, 2.0, 1),
        (40, None, 1),
        (50, 2.5, 1),
        (60, 0.5, 1),
    ]:
        write(tmp_path, step, loss, by)
    (committed_path(tmp_path, 60) / "a").unlink()
    folders.delete_old(tmp_path, keep, attempt)
    assert [path.name for path in committed_paths(tmp_path)] == [f"step-{step:08d}" for step in steps]


def test_parts_of_earlier_attempts_are_removed(tmp_path):
    kept, quarantined = write(tmp_path, 10), folders.quarantine(write(tmp_path, 20))
    names = (
        "step-00000030.a001.tmp",
        "step-00000031.a002.tmp",
        "step-00000005.deleted",
        "step-00000040.a003.tmp",
    )
    for name in names:
        (tmp_path / name / "part").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    folders.remove_partial(tmp_path, 2)
    later = tmp_path / names[-1]  # which this attempt, if it comes late, must leave alone
    assert set(tmp_path.iterdir()) == {kept, quarantined, later, tmp_path / "notes.txt"}
