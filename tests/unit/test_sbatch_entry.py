"""`jobs/train.sbatch`: the resources that it requests, and the plan that all starts of its job share."""

from __future__ import annotations

import ast
import inspect
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.errors import ConfigError
from disttrain.records.gpu_hours import bound_hours
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.core import excluded_nodes
from jobs.node import interpreter
from jobs.schedulers.slurm.allocation import SlurmAllocation
from jobs.submission import by_hand, sbatch_entry
from tests.support.commands import Commands

ENVIRON = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_NODEID": "1"}


def request(folder: Path, *words: str, **environ: str) -> dict[str, Any]:
    given = {**ENVIRON, "SLURM_SUBMIT_DIR": str(folder), **environ}
    return vars(by_hand.read_request(words, SlurmAllocation(given)))


def start(job: str, restart: int, step: str) -> SlurmAllocation:
    environ = {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restart), "SLURM_STEP_LAUNCHER_PORT": step}
    return SlurmAllocation(environ)


def test_the_shape_is_the_jobs_own(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("resources: {device: cpu, gpus_per_node: 2}\n")
    on_cpu = request(tmp_path, "--config", "my.yaml", "--train.steps=5", "--optim.lr", "0.1", "--name", "x")
    assert on_cpu == {
        "file": str(tmp_path / "my.yaml"),
        "name": "x",
        "run_name": None,
        "runs": tmp_path / "runs",
        "nodes": "2",
        "gpus_per_node": None,
        "set": ["train.steps=5", "optim.lr=0.1"],
        "start_from": None,
        "on_end": None,
        "command": (),
        "skip_preflight": False,
        "from_scratch": False,
    }
    assert request(tmp_path, "--config", "my.yaml", "--from-scratch")["from_scratch"]
    assert request(tmp_path, "--config", "my.yaml", "--skip-preflight")["skip_preflight"]
    gpus = {"SLURM_GPUS_ON_NODE": "4"}
    assert request(tmp_path, "--config", "my.yaml", **gpus)["gpus_per_node"] is None
    again = request(tmp_path, "--config", "my.yaml", "--resources.device", "cuda", **gpus)
    assert again["gpus_per_node"] == "4"
    assert request(tmp_path)["file"] == str(by_hand.DEFAULT)


@pytest.mark.parametrize("key", ["resources.nodes", "resources.gpus_per_node", "job.time_limit_min"])
def test_a_shape_beside_it_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--{key}: {key} is set by the job: use sbatch --"):
        request(tmp_path, f"--{key}", "8", SLURM_GPUS_ON_NODE="4")


def test_a_later_start_finds_what_the_earlier_ones_were_for(tmp_path: Path) -> None:
    first = start("7", 0, "31000")
    assert by_hand.newest_plan(first, tmp_path, range(1)) is None
    for job, run, time in (
        (first, "a/b", "2026-01-02"),
        (start("7", 0, "31500"), "old/cluster", "2026-01-01"),
        (start("7", 1, "32000"), None, "2026-01-03"),
        (start("77", 0, "33000"), "other/job", "2026-01-04"),
    ):
        planned = {"restart": job.restart, "time": time, "run": run, "submission": 3}
        write_json(by_hand.plan_file(job, tmp_path), planned)
    former = by_hand.newest_plan(start("7", 2, "34000"), tmp_path, range(2))
    assert former is not None
    assert (former["run"], former["submission"]) == ("a/b", 3)
    assert by_hand.newest_plan(first, tmp_path, range(0)) is None, "another job with that id"
    write_json(RunDir(tmp_path / "a" / "b").run_json, {})
    assert [path.name for path in by_hand.plans_without_run(tmp_path)] == [
        "7-0-31500.json",
        "77-0-33000.json",
    ]


@pytest.mark.parametrize(
    ("said", "limit_min"),
    [("30:00", 30), ("1:30:00", 90), ("2-01:00:00", 2940), ("UNLIMITED", 5), ("INVALID", 5)],
)
def test_the_time_limit_is_the_jobs(
    said: str, limit_min: float, tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.yaml").write_text(
        "{model: {kind: mlp}, data: {kind: digits}, resources: {device: cpu},"
        " train: {steps: 9, local_batch_size: 8}, job: {time_limit_min: 5}}"
    )
    commands.add("squeue", f'case "$*" in *--jobs*) echo {said};; esac')
    became = []
    monkeypatch.setattr(os, "execve", lambda python, command, env: became.append(command))
    environ = {**ENVIRON, "SLURM_NODEID": "0", "SLURM_SUBMIT_DIR": str(tmp_path)}
    by_hand.main(["--config", "my.yaml"], environ)
    ((*_, folder, _, submission),) = became
    record = read_json(RunDir(Path(folder)).run_json)
    assert (record["config"]["job"]["time_limit_min"], submission) == (limit_min, "0")
    assert bound_hours(record, "CPU rank-hours") == pytest.approx(2 * limit_min / 60), "of two nodes"


@pytest.mark.parametrize(
    ("nodes", "timeout_s", "warned"), [("2", "600", True), ("2", "120", False), ("1", "600", False)]
)
def test_a_longer_wait_at_the_rendezvous_than_that_of_the_script_is_a_warning(
    nodes: str,
    timeout_s: str,
    warned: bool,
    tmp_path: Path,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands.add("squeue", "exit 1")
    monkeypatch.setattr(os, "execve", lambda python, command, env: None)
    environ = {
        **ENVIRON, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NODEID": "0", "SLURM_SUBMIT_DIR": str(tmp_path),
    }  # fmt: skip
    by_hand.main(["--job.rendezvous_timeout_s", timeout_s], environ)
    err = capsys.readouterr().err
    line = "warning: job.rendezvous_timeout_s=600 needs --wait=630 in a copy of jobs/train.sbatch, which has "
    assert (line in err) is warned
    wait = re.search(r"--wait=(\d+)", (by_hand.DEFAULT.parents[1] / "jobs" / "train.sbatch").read_text())
    assert wait is not None
    assert not warned or f"{line}--wait={wait[1]}:" in err, "the number of the script"


@pytest.mark.parametrize("absent", [["torch"], ["torch", "yaml"]])
def test_another_python_is_refused_before_anything_is_planned(
    absent: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpreter, "find_spec", lambda name: None if name in absent else name)
    with pytest.raises(SystemExit) as left:
        sbatch_entry.main([])
    assert left.value.code == 93
    lacks = f"{sys.executable} on {platform.node()} has no {', '.join(absent)}"
    another = "name another with `python` of the site profile, or DISTTRAIN_PYTHON"
    assert capsys.readouterr().err == f"cannot start: {lacks}; {another}\n"
    assert not any(tmp_path.iterdir())


def test_a_python_with_nothing_installed_says_so(tmp_path: Path) -> None:
    without_packages = ["-S", "-m", "jobs.submission.sbatch_entry"]
    assert " has no torch, psutil, pydantic, yaml; " in _refused(without_packages, tmp_path)


def test_an_old_python_says_so(tmp_path: Path) -> None:
    start = "runpy.run_module('jobs.submission.sbatch_entry', run_name='__main__')"
    old = f"import runpy, sys; sys.version_info = (3, 9); {start}"
    assert " is Python 3.9, 3.11 or newer is needed; " in _refused(["-c", old], tmp_path)


@pytest.mark.parametrize("module", [interpreter, sbatch_entry])
def test_a_python_as_old_as_36_can_compile_what_refuses_it(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module), feature_version=(3, 6))
    imports = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    assert "__future__" not in imports, "3.6 has no `annotations`"


def _refused(arguments: list[str], folder: Path) -> str:
    """The one line of a refusal that leaves nothing in `folder`."""
    environ = {**os.environ, "PYTHONPATH": str(by_hand.run_code.CODE_ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (93, "")
    assert done.stderr.count("\n") == 1
    assert not any(folder.iterdir())
    return done.stderr


def test_the_step_after_a_failure_takes_the_plan_of_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, env: became.append(words))
    monkeypatch.setattr(by_hand.run_code, "code_of_run", lambda run, record: tmp_path)
    root = tmp_path / "runs"
    for restart, step, run in ((0, "41", "my/a"), (1, "42", "my/b"), (2, "43", None)):
        if run is not None:
            write_json(root / run / "run.json", {})
        plan = {"run": run, "submission": restart, "restart": restart, "time": f"{restart}"}
        write_json(by_hand.plan_file(start("7", restart, step), root), plan)
    environ = {**ENVIRON, "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_STEP_LAUNCHER_PORT": "50"}
    by_hand.main(["--after-failure", "--config", "my.yaml"], {**environ, "SLURM_RESTART_COUNT": "1"})
    (words,) = became
    assert words[2:] == [
        "jobs.schedulers.task", str(root / "my" / "b"), "--submission", "1", "--after-failure",
    ]  # fmt: skip
    code = by_hand.main(["--after-failure"], {**environ, "SLURM_RESTART_COUNT": "2"})
    assert (code, len(became)) == (69, 1), "this start has planned no run"


def test_listed_nodes_are_a_warning(tmp_path: Path) -> None:
    allocation, scheduler = Mock(hosts=lambda: ["n1"]), Mock()
    scheduler.cluster_name.return_value = "west"
    excluded_nodes.add(
        tmp_path, excluded_nodes.ExcludedNode.until("n1", "slow link", cluster="west", by="ann")
    )
    (line,) = by_hand.exclusion_warnings(allocation, tmp_path, scheduler)
    assert line.startswith("node n1 is on the exclusion list (ann: slow link)")
