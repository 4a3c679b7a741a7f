"""The Python of the ranks: its words, what a node sees of it, and why it cannot start ranks."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

import pytest

from jobs.checks import rank_python
from jobs.checks.rank_python import find, words_of

BARE = f'exec {shlex.quote(sys.executable)} -S "$@"'
VERSION = platform.python_version()
ENVIRON = {**os.environ, "PYTHONSAFEPATH": ""}


def script(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o755)
    return shlex.quote(str(path))


def test_the_words_of_interpreters_environments_and_commands(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert words_of(None) == [sys.executable]
    assert words_of("/usr/bin/python3.9") == ["/usr/bin/python3.9"]
    assert words_of("~/a b") == [f"{tmp_path}/a b/bin/python"]
    assert words_of("uv run") == ["uv", "run", "python"]
    assert words_of("pixi run -e 'x y' python3") == ["pixi", "run", "-e", "x y", "python3"]


def test_by_default_it_is_that_of_the_agent(monkeypatch):
    python = find({}, ENVIRON, is_trainer=True)
    assert (python.words, python.problem, python.missing) == ([sys.executable], None, "")
    assert python.version == VERSION
    assert "torch" in python.packages


def test_a_command_that_sets_variables_is_replaced_by_its_interpreter(tmp_path):
    """So that no process stands between torchrun and the agent."""
    run = script(tmp_path / "x y" / "uv", "export OF_LOCK=1", 'shift; exec "$@"')
    given = {**ENVIRON, "PATH": f"{Path(sys.executable).parent}:{ENVIRON['PATH']}"}
    python = find({"python": f"{run} run"}, given, is_trainer=False)
    assert (list(python.words), python.variables, python.problem) == (
        [sys.executable],
        {"OF_LOCK": "1"},
        None,
    )


@pytest.mark.parametrize(
    ("lines", "launcher", "is_trainer", "problem"),
    [
        (
            [f'exec {shlex.quote(sys.executable)} -S "$@"'],
            "torchrun",
            False,
            f" is Python {VERSION} without torch",
        ),
        ([f'exec {shlex.quote(sys.executable)} -S "$@"'], "node", False, None),
        (["echo no licence >&2; exit 3"], "torchrun", False, " cannot be started: no licence"),
        (["exit 3"], "torchrun", False, " cannot be started: exit code 3"),
        (["echo no JSON"], "torchrun", False, " cannot be started: it printed 'no JSON'"),
        (None, "torchrun", False, " cannot be started: No such file or directory"),
    ],
)
def test_why_it_cannot_start_the_ranks(lines, launcher, is_trainer, problem, tmp_path):
    if lines is not None:
        script(tmp_path / "env" / "bin" / "python", *lines)
    job = {"python": f"{tmp_path}/env" if lines else f"{tmp_path}/none", "launcher": launcher}
    found = find(job, ENVIRON, is_trainer=is_trainer).problem
    assert (
        found is None if problem is None else (found.startswith("job.python='") and found.endswith(problem))
    )


@pytest.mark.parametrize(
    ("version", "packages", "problem"),
    [
        (
            "3.10.2",
            {"torch": "2.2.0"},
            "is Python 3.10.2 without Python 3.11, pydantic, psutil, PyYAML, numpy",
        ),
        ("3.12.1", dict.fromkeys(["torch", *rank_python._OF_PROJECT], "1"), None),
        ("3.12.1", dict.fromkeys(rank_python._OF_PROJECT, "1"), "is Python 3.12.1 without torch"),
    ],
)
def test_the_trainer_needs_packages_of_this_project(version, packages, problem, monkeypatch):
    about = {"executable": "/x", "version": version, "path": [], "environ": {}, "packages": packages}
    about["has_numactl"] = False
    monkeypatch.setattr(rank_python.describe_python, "describe", lambda: about)
    found = find({}, ENVIRON, is_trainer=True).problem
    assert found is problem or found.endswith(problem)
