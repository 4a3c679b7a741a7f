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
from disttrain.records.collect_provenance import code_hash, git_state
from disttrain.records.json_files import write_text
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
    before = code_hash(checkout)
    shutil.copytree(checkout, tmp_path / "elsewhere")
    for name in ("disttrain/notes.txt", "analysis/a.py", "sweeps/a.py", "jobs/cli/a.py", "jobs/status/a.py"):
        write_text(checkout / name, "it does not run on the nodes")
    assert code_hash(checkout) == before == code_hash(tmp_path / "elsewhere")
    hashes = [before]
    for name in ("jobs/node/more.py", "jobs/fabric/variables.json"):
        write_text(checkout / name, "{}")
        hashes.append(code_hash(checkout))
    assert len({*hashes}) == 3


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


NO_COMMIT = {"git_commit": None, "git_dirty": None, "git_diff": None}


def test_without_git_or_in_a_repository_around_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(checkout) == NO_COMMIT
    git(checkout.parent, "init")
    assert git_state(checkout) == NO_COMMIT
    monkeypatch.setenv("PATH", "")
    assert git_state(checkout) == NO_COMMIT


def test_commit_and_changes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("init",), ("add", "."), ("commit", "-m", "first")):
        git(checkout, *command)
    clean = git_state(checkout)
    assert (len(clean["git_commit"]), clean["git_dirty"], clean["git_diff"]) == (40, False, None)
    (checkout / "jobs" / "__init__.py").write_text("changed = 1\n")
    dirty = git_state(checkout)
    assert (dirty["git_dirty"], "+changed = 1" in dirty["git_diff"]) == (True, True)
    monkeypatch.setattr(collect_provenance, "_DIFF_LIMIT", 10)
    assert len(git_state(checkout)["git_diff"]) == 10
