"""What is recorded of code, versions and host."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from disttrain.records import collect_provenance
from disttrain.records.planned import Provenance

ROOT = Path(collect_provenance.__file__).parents[2]


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


def test_it_fits_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["submit.py", "--token=hush"])
    record = Provenance.model_validate(collect_provenance.collect())
    assert record.argv == ["submit.py", "--token=***"]
    assert record.code.hash == collect_provenance.code_hash()
    assert "torch" in record.packages


def test_the_hash_is_of_the_sources_wherever_they_lie(checkout: Path, tmp_path: Path) -> None:
    before = collect_provenance.code_hash(checkout)
    shutil.copytree(checkout, tmp_path / "elsewhere")
    (checkout / "disttrain" / "notes.txt").write_text("not code")
    for folder in ("analysis", "sweeps", "jobs/cli", "jobs/status", "jobs/schedulers/slurm"):
        (checkout / folder).mkdir(parents=True)
        (checkout / folder / "sacct.py").write_text("does not run on the nodes")
    assert (
        collect_provenance.code_hash(checkout)
        == before
        == collect_provenance.code_hash(tmp_path / "elsewhere")
    )
    (checkout / "jobs" / "node").mkdir()
    (checkout / "jobs" / "node" / "more.py").write_text("x = 1\n")
    assert (with_more := collect_provenance.code_hash(checkout)) != before
    (checkout / "jobs" / "fabric").mkdir()
    (checkout / "jobs" / "fabric" / "variables.json").write_text("{}")
    assert collect_provenance.code_hash(checkout) != with_more


IN_A_JOB = (
    "jobs.schedulers.task",
    "jobs.schedulers.slurm.allocation",
    "jobs.schedulers.local.supervisor",
)
"""Modules that a scheduler or an agent starts by name."""
DATA = ("jobs/fabric/variables.json",)
RENDERS_THE_JOB = "jobs.schedulers.slurm.script"
CHECKS = {"jobs/schedulers/slurm/profile.py"}
"""Modules that the batch script imports, but that only hold and check values of the site profile."""


def test_the_hash_covers_what_runs_in_a_job_and_nothing_else_of_jobs() -> None:
    rendering = imports_of([RENDERS_THE_JOB])
    assert rendering >= CHECKS
    imported = imports_of(IN_A_JOB) | (rendering - CHECKS)
    missing = [name for name in imported if not collect_provenance.runs_in_job(name)]
    assert missing == [], "these files run inside a job, or render its script"
    assert all(map(collect_provenance.runs_in_job, DATA)), "these data decide what ranks get"
    assert all((ROOT / name).is_file() for name in DATA)
    hashed = {
        name
        for path in (ROOT / "jobs/schedulers").rglob("*.py")
        if collect_provenance.runs_in_job(name := path.relative_to(ROOT).as_posix())
    }
    assert hashed - imported == set(), "these files run on the login node only"


def imports_of(modules: Sequence[str]) -> set[str]:
    """Files of `jobs/` that these modules import, directly or not, without the empty `__init__.py`."""
    found: set[str] = set()
    todo = list(modules)
    while todo:
        name = todo.pop().replace(".", "/") + ".py"
        if name in found or not name.startswith("jobs/") or not (ROOT / name).exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Import):
                todo += [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return found


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
