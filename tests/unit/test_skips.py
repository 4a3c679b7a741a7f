"""Skips and time limits: pytest itself, on small test files with this project's hooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from tests.support import skips

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


FILES = {
    "unit/test_skipped.py": SKIPPED,
    "unit/test_module.py": WHOLE_MODULE,
    "unit/test_xfail.py": EXPECTED_FAILURE,
    "gpu/test_without_gpu.py": SKIPPED,
}


def run(folder: Path, ci: bool) -> subprocess.CompletedProcess[str]:
    """Run pytest on `FILES` with the hooks of `tests.support.skips`."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    hooks = "pytest_make_collect_report, pytest_runtest_makereport"
    (folder / "conftest.py").write_text(f"from tests.support.skips import {hooks}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true" if ci else ""}
    return subprocess.run(
        [*command, "--continue-on-collection-errors", f"--rootdir={folder}", folder], cwd=folder,
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("ci", [True, False])
def test_in_continuous_integration_only_tests_of_a_gpu_are_skipped(tmp_path: Path, ci: bool) -> None:
    done = run(tmp_path, ci)
    assert done.returncode == int(ci), done.stdout + done.stderr
    failed = set(re.findall(r"^(?:FAILED|ERROR) ([\w/.]+)", done.stdout, re.MULTILINE))
    assert failed == ({"unit/test_skipped.py", "unit/test_module.py"} if ci else set()), done.stdout
    reason = "no test may be skipped under CI=true: Skipped: no transformers"
    assert (f"FAILED unit/test_skipped.py::test_one - {reason}" in done.stdout) is ci
    assert "XFAIL unit/test_xfail.py::test_one" in done.stdout
    assert re.search(r"^SKIPPED \[1\] gpu/test_without_gpu.py:", done.stdout, re.MULTILINE)


def test_the_tests_of_this_project_have_these_hooks(request: pytest.FixtureRequest) -> None:
    for name in ("pytest_make_collect_report", "pytest_runtest_makereport"):
        callers = getattr(request.node.ihook, name).get_hookimpls()
        assert getattr(skips, name) in [each.function for each in callers]


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) == 120
    limits = {}
    for name, markers in (("slow", ["slow"]), ("own", ["slow", "timeout"]), ("quick", [])):
        item = pytest.Function.from_parent(request.node.parent, name=request.node.name, callobj=run)
        for marker in markers:
            item.add_marker(pytest.mark.timeout(900) if marker == "timeout" else getattr(pytest.mark, marker))
        conftest.pytest_collection_modifyitems([item])
        limits[name] = [mark.args[0] for mark in item.iter_markers("timeout")]
    assert limits == {"slow": [600], "own": [900], "quick": []}


def test_tests_that_share_ranks_run_in_one_process() -> None:
    alone = {
        "tests/unit/test_skips.py",
        "tests/multiprocess/test_default_sweep.py",
        "tests/slurm/test_jobs.py",
    }
    assert {conftest.scope_of(file) for file in alone} == alone
    assert conftest.scope_of("tests/multiprocess/test_ddp.py") == "tests/multiprocess"


@pytest.mark.slow
def test_a_crashed_worker_ends_the_session(tmp_path):
    """With the options of `make test`, and the scheduler of these tests."""
    command = ["make", "-n", "PROCESSES=2", "test"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    options = re.search(r"-m pytest (.*) -m ", printed)[1].split()
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text(
            "def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n"
        )
    (tmp_path / "test_c.py").write_text("import os\ndef test_1(): pass\ndef test_2(): os.abort()\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1
