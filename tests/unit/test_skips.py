"""Skips and time limits: pytest itself, on small test files with this project's hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest

ROOT = Path(__file__).parents[2]
SKIPPED = """\
import pytest

def test_one():
    pytest.skip("no transformers")
"""
WHOLE_MODULE = """\
import pytest

pytest.importorskip("no_such_package")
"""
EXPECTED_FAILURE = """\
import pytest

@pytest.mark.xfail
def test_one():
    assert False
"""


def run(folder: Path, text: str, ci: bool) -> subprocess.CompletedProcess[str]:
    """Run pytest on one test file with the hooks of `tests.support.skips`."""
    folder.mkdir(parents=True)
    hooks = "pytest_make_collect_report, pytest_runtest_makereport"
    (folder / "conftest.py").write_text(f"from tests.support.skips import {hooks}\n")
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true" if ci else ""}
    return subprocess.run(
        [*command, f"--rootdir={folder}", folder], cwd=folder, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "folder", "fails"),
    [
        (SKIPPED, "unit", True),
        (WHOLE_MODULE, "unit", True),
        (EXPECTED_FAILURE, "unit", False),
        (SKIPPED, "gpu", False),
    ],
    ids=["test", "module", "xfail", "gpu"],
)
def test_in_continuous_integration_only_tests_of_a_gpu_are_skipped(
    tmp_path: Path, text: str, folder: str, fails: bool
) -> None:
    done = run(tmp_path / "ci" / folder, text, ci=True)
    assert (done.returncode in (1, 2)) is fails, done.stdout + done.stderr
    assert ("no test may be skipped under CI=true" in done.stdout) is fails
    assert run(tmp_path / "here" / folder, text, ci=False).returncode in (0, 5)


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) == 120
    limits = {}
    for name, markers in (("slow", ["slow"]), ("own", ["slow", "timeout"]), ("quick", [])):
        item = pytest.Function.from_parent(request.node.parent, name=request.node.name, callobj=run)
        for marker in markers:
            item.add_marker(pytest.mark.timeout(900) if marker == "timeout" else getattr(pytest.mark, marker))
        conftest.pytest_collection_modifyitems([item])
        limits[name] = [mark.args[0] for mark in item.iter_markers("timeout")]
    assert limits == {"slow": [300], "own": [900], "quick": []}
