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
SKIPPED = "import pytest\ndef test_one():\n    pytest.skip('no transformers')\n"
FILES = {
    "unit/test_skipped.py": SKIPPED,
    "unit/test_module.py": "import pytest\npytest.importorskip('no_such_package')\n",
    "unit/test_xfail.py": "import pytest\n@pytest.mark.xfail\ndef test_one():\n    assert False\n",
    "gpu/test_without_gpu.py": SKIPPED,
}


def run(folder: Path, *options: str, hooks: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on the folder with these hooks."""
    (folder / "conftest.py").write_text(f"from {hooks}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={folder}", str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("ci", [True, False])
def test_in_continuous_integration_only_tests_of_a_gpu_are_skipped(tmp_path: Path, ci: bool) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    options = ["-q", "-rA", "-p", "no:xdist", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    hooks = "tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport"
    done = run(tmp_path, *options, hooks=hooks, CI="true" if ci else "")
    assert done.returncode == int(ci), done.stdout + done.stderr
    failed = set(re.findall(r"^(?:FAILED|ERROR) ([\w/.]+)", done.stdout, re.MULTILINE))
    assert failed == ({"unit/test_skipped.py", "unit/test_module.py"} if ci else set()), done.stdout
    assert ("under CI=true: Skipped: no transformers" in done.stdout) is ci
    assert "XFAIL unit/test_xfail.py::test_one" in done.stdout
    assert re.search(r"^SKIPPED \[1\] gpu/test_without_gpu.py:", done.stdout, re.MULTILINE)


def test_the_tests_of_this_project_have_these_hooks(request: pytest.FixtureRequest) -> None:
    for name in ("pytest_make_collect_report", "pytest_runtest_makereport"):
        callers = getattr(request.node.ihook, name).get_hookimpls()
        assert getattr(skips, name) in [each.function for each in callers]


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) == 120
    slow, own = pytest.mark.slow, pytest.mark.timeout(900)
    for marks, limits in (([slow], [600]), ([slow, own], [900]), ([], [])):
        item = pytest.Function.from_parent(request.node.parent, name=request.node.name, callobj=run)
        for mark in marks:
            item.add_marker(mark)
        conftest.pytest_collection_modifyitems([item])
        assert [mark.args[0] for mark in item.iter_markers("timeout")] == limits


def test_tests_that_share_ranks_run_in_one_process() -> None:
    alone = (
        "tests/unit/test_skips.py",
        "tests/multiprocess/test_default_sweep.py",
        "tests/slurm/test_jobs.py",
    )
    assert [conftest.scope_of(file) for file in alone] == [*alone]
    assert conftest.scope_of("tests/multiprocess/test_ddp.py") == "tests/multiprocess"


@pytest.mark.slow
def test_a_crashed_worker_ends_the_session(tmp_path: Path) -> None:
    """With the options of `make test`, and the scheduler of these tests."""
    command = ["make", "-n", "PROCESSES=2", "test"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (options,) = re.findall(r"-m pytest (.*) -m ", printed)
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    (tmp_path / "test_c.py").write_text("import os\ndef test_1(): pass\ndef test_2(): os.abort()\n")
    hooks = "tests.conftest import pytest_xdist_make_scheduler"
    assert run(tmp_path, *options.split(), hooks=hooks).returncode == 1
