"""The folder of checkpoints: whole or not there, never the last good one deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from disttrain.checkpoint import folder as folders
from disttrain.checkpoint.folder import CommittedCheckpoint, DamagedCheckpoint
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import committed_path, committed_paths
from disttrain.records.json_files import read_json, write_json
from tests.support.manifests import manifest

CONTENT = b"weights" * 100


def write(folder: Path, step: int, valid_loss: float | None = None) -> Path:
    temporary = folders.temporary_path(folder, step, attempt=0)
    temporary.mkdir(parents=True)
    (temporary / "a").write_bytes(CONTENT)
    (temporary / ".metadata").write_bytes(CONTENT)
    files = {name: folders.file_digest(temporary / name) for name in ("a", ".metadata")}
    return folders.commit(temporary, manifest(step, valid_loss).model_copy(update={"files": files}))


def test_a_commit_appears_whole_under_its_step(tmp_path: Path) -> None:
    path = write(tmp_path, 10)
    assert committed_paths(tmp_path) == [path]
    found = folders.read_manifest(path)
    assert folders.mismatched_files(CommittedCheckpoint(path, found), found.files) == []
    assert os.listdir(tmp_path) == ["step-00000010"]


def test_a_commit_replaces_nothing(tmp_path: Path) -> None:
    write(tmp_path, 10)
    with pytest.raises(OSError, match=r"not empty|exists"):
        write(tmp_path, 10)
    assert folders.read_manifest(committed_path(tmp_path, 10)).step == 10


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = write(tmp_path, 10)
    (path / "a").write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    found = folders.read_manifest(path)
    assert folders.mismatched_files(CommittedCheckpoint(path, found), found.files) == ["a"]


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest", "empty manifest"])
def test_damage_that_shows_without_reading_the_content(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, 10)
    if damage == "truncated":
        (path / "a").write_bytes(CONTENT[:-1])
    elif damage == "missing":
        (path / "a").unlink()
    elif damage == "no manifest":
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_text("")
    with pytest.raises(DamagedCheckpoint):
        folders.read_manifest(path)


def test_what_cannot_be_read_now_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that is in trouble would otherwise cost the newest checkpoint, which is whole."""
    path = write(tmp_path, 10)
    found = folders.read_manifest(path)

    def stale(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(folders, "file_digest", stale)
        with pytest.raises(OSError, match="Stale"):
            folders.mismatched_files(CommittedCheckpoint(path, found), ["a"])
    with monkeypatch.context() as patched:
        patched.setattr(folders, "read_json", stale)
        with pytest.raises(OSError, match="Stale"):
            folders.read_manifest(path)
    assert committed_paths(tmp_path) == [path]


@pytest.mark.parametrize("change", [{"compression": "zstd"}, {"torch": ...}, {"step": "ten"}])
def test_what_other_code_wrote_is_refused_not_set_aside(tmp_path: Path, change: dict) -> None:
    path = write(tmp_path, 10)
    changed = {k: v for k, v in (read_json(path / "manifest.json") | change).items() if v is not ...}
    write_json(path / "manifest.json", changed)
    with pytest.raises(ConfigError, match=f"other code.*{next(iter(change))}"):
        folders.read_manifest(path)


def test_a_manifest_of_another_step_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path, 10)
    write_json(path / "manifest.json", read_json(path / "manifest.json") | {"step": 9})
    with pytest.raises(DamagedCheckpoint, match="is of step 9"):
        folders.read_manifest(path)
    copy = path.rename(tmp_path / "step-00000010-copy")
    assert folders.read_manifest(copy).step == 9, "only a folder that is named for a step is compared"


def test_quarantine_keeps_every_one(tmp_path: Path) -> None:
    for _ in range(2):
        folders.quarantine(write(tmp_path, 10))
    assert sorted(os.listdir(tmp_path)) == ["step-00000010.damaged", "step-00000010.damaged-2"]
    assert committed_paths(tmp_path) == []


def test_prune_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step, loss in [(10, 3.0), (20, 1.0), (30, 2.0), (40, None), (50, 2.5)]:
        write(tmp_path, step, loss)
    folders.delete_old(tmp_path, keep=2)
    assert [path.name for path in committed_paths(tmp_path)] == [
        "step-00000050",
        "step-00000040",
        "step-00000020",
    ]


def test_prune_neither_counts_nor_touches_what_it_cannot_read(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write(tmp_path, step)
    (committed_path(tmp_path, 30) / "a").unlink()
    folders.delete_old(tmp_path, keep=1)
    assert [path.name for path in committed_paths(tmp_path)] == ["step-00000030", "step-00000020"]


def test_what_earlier_attempts_left_half_done_is_removed(tmp_path: Path) -> None:
    kept = write(tmp_path, 10)
    move_to_quarantine = folders.quarantine(write(tmp_path, 20))
    for name in ("step-00000030.a001.tmp", "step-00000005.deleted", "step-00000040.a003.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    (tmp_path / "notes.txt").touch()
    folders.remove_partial(tmp_path, 2)
    later = tmp_path / "step-00000040.a003.tmp"  # which this attempt, if it comes late, must leave alone
    assert set(tmp_path.iterdir()) == {kept, move_to_quarantine, later, tmp_path / "notes.txt"}
