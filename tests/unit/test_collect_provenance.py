"""What is recorded of code, versions and host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from disttrain.records import collect_provenance
from disttrain.records.provenance import Provenance


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the packages, as one checkout."""
    root = tmp_path / "checkout"
    for package in ("disttrain", "jobs"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text(f"# {package}\n")
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_it_fits_its_record() -> None:
    record = Provenance.model_validate(collect_provenance.collect(["submit.py", "--token=hush"]))
    assert record.argv == ["submit.py", "--token=***"]
    assert record.code.hash == collect_provenance.code_hash()
    assert "torch" in record.packages


def test_the_hash_is_of_the_sources_wherever_they_lie(checkout: Path, tmp_path: Path) -> None:
    before = collect_provenance.code_hash(checkout)
    shutil.copytree(checkout, tmp_path / "elsewhere")
    (checkout / "jobs" / "notes.txt").write_text("not code")
    (checkout / "analysis").mkdir()
    (checkout / "analysis" / "x.py").write_text("does not run on the nodes")
    assert (
        collect_provenance.code_hash(checkout)
        == before
        == collect_provenance.code_hash(tmp_path / "elsewhere")
    )
    (checkout / "jobs" / "more.py").write_text("x = 1\n")
    assert collect_provenance.code_hash(checkout) != before


def test_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"git_commit": None, "git_dirty": None, "git_diff": None}
    assert collect_provenance.git_state(checkout) == nothing
    monkeypatch.setenv("PATH", "")
    assert collect_provenance.git_state(checkout) == nothing


def test_somebody_elses_repository_around_it(checkout: Path) -> None:
    git(checkout.parent, "init")
    assert collect_provenance.git_state(checkout)["git_commit"] is None


def test_commit_and_changes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "first")
    clean = collect_provenance.git_state(checkout)
    assert len(clean["git_commit"]) == 40
    assert (clean["git_dirty"], clean["git_diff"]) == (False, None)
    (checkout / "jobs" / "__init__.py").write_text("changed = 1\n")
    dirty = collect_provenance.git_state(checkout)
    assert dirty["git_dirty"] is True
    assert "+changed = 1" in dirty["git_diff"]
    monkeypatch.setattr(collect_provenance, "_DIFF_LIMIT", 10)
    assert len(collect_provenance.git_state(checkout)["git_diff"]) == 10
