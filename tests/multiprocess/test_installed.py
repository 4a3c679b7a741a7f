"""The command `disttrain` of a wheel, in an environment and a user's folder without the checkout."""

from __future__ import annotations

import json
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import read_runs
from tests.support.fake_runs import fake_sweep
from tests.support.installed import ROOT, install, uninstall
from tests.support.jobs import ended_afterwards, wait_until

pytestmark = pytest.mark.multiprocess

Ask = Callable[..., subprocess.CompletedProcess[str]]
PACKAGES = ("analysis", "disttrain", "jobs", "sweeps")
NET = """\
import math
from torch import nn

class Net(nn.Sequential):
    def __init__(self, source):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(source.shape), source.classes))
"""
WAIT = """\
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.1)
"""
CONFIG = "model: {kind: KIND}\ndata: {kind: digits}\ntrain: {steps: 4, local_batch_size: 8}\n"


@pytest.fixture
def packages(distributions: tuple[Path, Path], tmp_path: Path) -> Path:
    return install(distributions[0], tmp_path / "environment")


@pytest.fixture
def ask(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Run the installed command in a folder of a user, `project`."""
    project, command = tmp_path / "project", packages.parents[2] / "bin" / "disttrain"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    with ended_afterwards(project / "runs", LocalScheduler()):
        yield run


def test_wheel_and_source_archive_hold_the_packages_and_their_data(distributions: tuple[Path, Path]) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    wheel, archive = distributions
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources | {"submit.py"}
    with tarfile.open(archive) as packed:
        unpacked = {name.partition("/")[2] for name in packed.getnames()}
    assert names | {"pyproject.toml", "README.md", "LICENSE"} <= unpacked
    assert not [name for name in unpacked if name.startswith(("tests", "benchmarks", "docs"))]


def test_a_new_project_trains_and_is_reported(ask: Ask) -> None:
    assert ask("status").stdout == "no runs in runs yet: disttrain sweep --nodes 1 2 4\n"
    ask("init")
    few = ["--set", "train.steps=4", "train.eval_every=0", "telemetry.warmup_steps=1"]
    ask("sweep", "config.yaml", "--nodes", "1", "2", "--cluster", "local", "--wait", *few)
    assert "report of config" in ask("report", "config").stdout
    plan = json.loads(ask("sweep", "--nodes", "1", "--dry-run", "--json").stdout)
    assert plan["sweep"] == "default"
    assert "nothing was written" in ask("sweep", "sweeps/digits.yaml", "--dry-run").stdout


def test_a_queued_run_outlives_the_installed_package_and_edits_of_the_project(
    ask: Ask, packages: Path
) -> None:
    project = Path.cwd()
    (project / "mine.py").write_text(NET)
    (project / "wait.py").write_text(WAIT)
    options = ["--cluster", "local", "--no-report", "--name", "s"]
    ask("run", *options, "--", "wait.py")
    (project / "net.yaml").write_text(CONFIG.replace("KIND", "'mine:Net'"))
    ask("run", "net.yaml", *options[:3])
    uninstall(packages)
    (project / "mine.py").write_text("raise RuntimeError('edited')")
    (project / "go").touch()
    wait_until(lambda: not any(state.active for state in read_runs(project / "runs")))
    states = {state.sweep: state for state in read_runs(project / "runs")}
    assert {name: state.state for name, state in states.items()} == {"s": "done", "net": "done"}
    code = read_json(states["net"].run.run_json)["provenance"]["code"]
    assert (code["not_covered"], code["source"]) == ([], None)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["report"], 2, "error: matplotlib is not installed"),
        (["ingest", "x.csv"], 2, "error: pandas is not installed"),
        (
            ["sweep", "net.yaml", "--repeats", "auto:5%"],
            2,
            "error: --repeats auto: matplotlib is not installed",
        ),
        (["sweep", "net.yaml"], 0, "no report will be written: matplotlib is not installed"),
    ],
)
def test_without_the_extra_verbs_of_the_report_name_it(
    words: list[str], code: int, line: str, ask: Ask, packages: Path
) -> None:
    (packages / "without.pth").write_text(
        "import sys; sys.modules |= dict.fromkeys(('matplotlib', 'pandas'))"
    )
    Path("net.yaml").write_text(CONFIG.replace("KIND", "mlp"))
    fake_sweep(Path("runs"), "measured", nodes=(1,))
    done = ask(*words, *(["--cluster", "local"] if "sweep" in words else []), code=code)
    text = done.stdout + done.stderr
    assert line in text
    assert "-m pip install 'disttrain[report]'" in text
    assert "Traceback" not in text
