"""submit.py, agents and report on Python 3.12 and 3.13 without torch, in an environment made by pip."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import analysis
import disttrain.config
import disttrain.hardware
import disttrain.records
import jobs
import sweeps
from disttrain.records.json_files import read_json
from jobs.core.run_code import CODE_ROOT
from jobs.schedulers.local.scheduler import LocalScheduler
from tests.support.environments import environment
from tests.support.jobs import ended_afterwards, settled

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

PACKAGES = (jobs, sweeps, analysis, disttrain.config, disttrain.records, disttrain.hardware)
SCRIPT = """\
import sys, torch
print(sys.prefix, torch.ones(2).sum().item())
"""


def interpreter(version: str) -> str | None:
    """This version of pyenv or uv, or in PATH."""
    folders = [Path.home() / ".pyenv" / "versions", Path.home() / ".local" / "share" / "uv" / "python"]
    found = [path for folder in folders for path in sorted(folder.glob(f"*{version}*/bin/python3"))]
    return str(found[0]) if found else shutil.which(f"python{version}")


@pytest.fixture(scope="module", params=["3.12", "3.13"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of this version with the packages of the project and of its report."""
    base = interpreter(request.param)
    if base is None:
        pytest.skip(f"no Python {request.param} of pyenv, uv or PATH")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([base, "-m", "venv", folder], check=True)
    project = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["report"]]
    pip = [folder / "bin/python", "-m", "pip", "install", "-q", "-c", CODE_ROOT / "constraints.txt"]
    done = subprocess.run([*pip, *needed], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install the packages: {[*done.stderr.splitlines(), ''][0]}")
    return folder / "bin" / "python"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SCRIPT)
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path


def output(python: Path, *words: str, **variables: str) -> str:
    environ = {**os.environ, **variables}
    done = subprocess.run([python, *words], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_load_and_runs_are_planned_submitted_and_reported(python: Path, folder: Path) -> None:
    names = [
        found.name
        for package in PACKAGES
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not found.name.endswith("__main__") and found.name != "analysis.notebook"  # in Jupyter alone
    ]
    assert len(names) > 200
    imports = "\n".join(f"import {name}" for name in names)
    Path("all.py").write_text(f"{imports}\nimport sys\nprint('torch' in sys.modules)")
    assert output(python, "all.py", PYTHONPATH=str(CODE_ROOT)) == "False\n"
    submit = str(CODE_ROOT / "submit.py")
    local = ["--cluster", "local", "--no-report", "--name", "s"]
    plan = json.loads(output(python, submit, "sweep", *local, "--nodes", "1", "2", "--dry-run", "--json"))
    assert [each["nodes"] for each in plan["plans"]] == [1, 2]
    ranks = environment(folder / "ranks", only_torch=True)
    output(python, submit, "run", *local, "--set", f"job.python={ranks}", "--", "own.py")
    (done,) = settled(folder / "runs").values()
    assert done.state == "done", done.message
    assert done.run.attempt(0).rank_log(0).read_text().endswith(f"{ranks} 2.0\n")
    output(python, submit, "report", "s")
    assert read_json(folder / "runs/s/report/report.json")["excluded_runs"][0]["run"] == done.run.name
