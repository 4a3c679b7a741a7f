"""`init`: the files that a project starts with, on a cluster and on a machine without Slurm."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

import submit
from jobs.core.run_code import CODE_ROOT
from jobs.schedulers.slurm.profile import GENERIC
from jobs.schedulers.slurm.train_script import script_of_python
from tests.support.cluster_sites import install
from tests.support.commands import Commands
from tests.support.scripts import DEAF, config, run
from tests.support.verbs import ask, refused

ALL = ["config.yaml", ".gitignore", "profile.yaml", "train.sbatch"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.delenv("DISTTRAIN_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def site(commands: Commands) -> None:
    install(commands, "h100")


@pytest.mark.usefixtures("site")
def test_on_a_cluster_config_profile_and_script_fit_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(ask(capsys, "init my --json"))["files"] == [f"my/{name}" for name in ALL]
    options = "--profile my/profile.yaml --cluster slurm --nodes 1 2 --dry-run --json"
    planned = json.loads(ask(capsys, f"sweep my/config.yaml {options}"))
    of_runs = {line for line in planned["batches"][0]["script"].splitlines() if "partition" in line}
    script = Path("my/train.sbatch").read_text()
    assert of_runs
    assert of_runs <= {*script.splitlines()}
    assert f"export PYTHONPATH={shlex.quote(str(CODE_ROOT))}" in script, "not installed for its Python"
    assert (
        ask(capsys, "init ./other").splitlines()[-1] == "  sbatch --nodes 2 train.sbatch --config config.yaml"
    )


def test_without_slurm_there_is_a_config(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / ".gitignore").write_text("mine\n")
    assert submit.main(["init"]) == 0
    printed = capsys.readouterr()
    reason = "they need Slurm, and this machine has no sbatch"
    assert printed.err == f"warning: profile.yaml and train.sbatch are not written: {reason}\n"
    assert printed.out.splitlines()[-1] == "  disttrain sweep config.yaml --nodes 1 2"
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", ".gitignore"}
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


@pytest.mark.parametrize("name", [name for name in ALL if name != ".gitignore"])
def test_nothing_is_overwritten(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("nowhere")
    assert refused(capsys, "init") == (
        f"error: {name} exists already, and is not overwritten: name a new folder\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert "cannot write to 'file/new': " in refused(capsys, "init file/new")


def test_the_script_runs_the_interpreter_that_wrote_it(tmp_path: Path) -> None:
    job = {"SLURM_JOB_NUM_NODES": "3", "SLURM_CPUS_PER_TASK": "20"}
    for code in (None, tmp_path / "my code's"):
        text = script_of_python(config(), GENERIC, "/a b/python", code)
        trace = run(text, tmp_path / "it", "--config", "c", **job)
        entry = [*DEAF, "/a b/python", "-m", "jobs.submission.sbatch_entry", "--config", "c"]
        assert trace.started[6:] == entry
        assert trace.environment.get("PYTHONPATH", "") == str(code or "")
        assert trace.environment["PYTHONSAFEPATH"] == "1"
    other = run(text, tmp_path / "it", DISTTRAIN_PYTHON=sys.executable, **job)
    assert sys.executable in other.started
