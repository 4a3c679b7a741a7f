"""`jobs/train.sbatch`: the run that its arguments describe, the plan that all starts of its job share."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.node import interpreter
from jobs.schedulers.slurm.allocation import SlurmAllocation
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.submission import by_hand, sbatch_entry
from tests.support.commands import Commands

CONFIG = """\
model: {kind: mlp}
data: {kind: digits}
resources: {device: cpu, gpus_per_node: 2}
train: {steps: 99, local_batch_size: 8}
job: {time_limit_min: 5}
"""


def job(folder: Path, node: int = 0, restart: int = 0, job_id: str = "7", **variables: str) -> dict[str, str]:
    """Environment of a node of a job of two nodes, submitted in `folder`."""
    numbers = {"NODEID": node, "RESTART_COUNT": restart, "STEP_LAUNCHER_PORT": 31000 + restart}
    of_slurm = {f"SLURM_{name}": str(number) for name, number in numbers.items()}
    return {
        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": job_id, "SLURM_SUBMIT_DIR": str(folder), **of_slurm,
        **variables,
    }  # fmt: skip


Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts the script on a node: run, submission and options of its task, or the exit code without one."""
    (tmp_path / "my.yaml").write_text(CONFIG)
    commands.add("squeue", "exit 1")
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda python, command, env: became.append(command))

    def on_node(*words: str, **names: Any) -> Any:
        code = by_hand.main(words or ["--config", "my.yaml"], job(tmp_path, **names))
        if not became:
            return code
        _, _, module, folder, _, submission, *options = became.pop()
        assert module == "jobs.schedulers.task"
        return str(Path(folder).relative_to(tmp_path / "runs")), submission, " ".join(options)

    return on_node


@pytest.mark.parametrize(
    ("words", "gpus", "expected"),
    [
        (["--train.steps=5", "--optim.lr", "0.1"], None, {"set": ["train.steps=5", "optim.lr=0.1"]}),
        (["--name", "x"], None, {"name": "x", "nodes": "2", "gpus_per_node": None, "run_name": None}),
        ([], "4", {"gpus_per_node": None, "skip_preflight": False, "from_scratch": False}),
        (["--resources.device", "cuda", "--from-scratch"], "4", {"gpus_per_node": "4", "from_scratch": True}),
        (
            ["--resources.device", "cuda", "--skip-preflight"],
            "0",
            {"gpus_per_node": None, "skip_preflight": True},
        ),
    ],
)
def test_the_shape_is_that_of_the_job(words, gpus, expected, tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG)
    allocation = SlurmAllocation(job(tmp_path) | ({"SLURM_GPUS_ON_NODE": gpus} if gpus else {}))
    request = vars(by_hand.read_request(["--config", "my.yaml", *words], allocation))
    assert request | expected == request
    assert (request["file"], request["runs"]) == (str(tmp_path / "my.yaml"), tmp_path / "runs")
    assert by_hand.read_request([], allocation).file == str(by_hand.DEFAULT)


def test_the_log_is_moved_to_the_runs_folder_by_each_start(tmp_path):
    script = Path(by_hand.__file__).parents[1] / "train.sbatch"
    (move,) = re.findall(r"^log=.*?^fi$", script.read_text(), re.MULTILINE | re.DOTALL)
    log, moved = tmp_path / "train-7.log", tmp_path / "runs" / "train-7.log"
    for start in ("first", "second"):
        with open(log, "a") as opened:  # as Slurm opens it
            environ = os.environ | job(tmp_path)
            words = ["bash", "-c", f"{move}\necho {start}"]
            subprocess.run(words, env=environ, cwd=tmp_path, stdout=opened, stderr=opened, check=True)
    assert (moved.read_text(), log.exists()) == ("first\nsecond\n", False)
    run = RunDir(tmp_path / "runs" / "my" / "n1")
    logs = [SlurmScheduler().batch_log(run, 0, job_id) for job_id in ("7", "8")]
    assert logs == [moved, run.submissions / "8.log"]


@pytest.mark.parametrize("key", ["resources.nodes", "resources.gpus_per_node", "job.time_limit_min"])
@pytest.mark.parametrize("node", [0, 1])
def test_a_shape_beside_that_of_the_job_is_refused_on_every_node(start, capsys, key, node):
    assert start(f"--{key}", "8", node=node, SLURM_GPUS_ON_NODE="4") == 93
    err = capsys.readouterr().err
    assert err.startswith(f"error: --{key}: ") if node == 0 else err == ""


def test_a_job_by_hand_has_no_follow_up(start, capsys, tmp_path):
    assert start("--job.on_done", "convert.py") == 93
    assert capsys.readouterr().err.startswith("error: job.on_done: a job by hand submits no other run")
    assert not list((tmp_path / "runs").glob("*/*/run.json"))


def test_a_later_start_finds_the_newest_plan_of_its_job_with_a_run(tmp_path):
    for restart, job_id, run, time in (
        (0, "7", "a/b", "2026-01-02"),
        (3, "7", "old/cluster", "2026-01-01"),
        (1, "7", None, "2026-01-03"),
        (0, "77", "other/job", "2026-01-04"),
    ):
        planned = {"restart": restart, "time": time, "run": run, "submission": 3}
        allocation = SlurmAllocation(job(tmp_path, job_id=job_id, restart=restart))
        write_json(by_hand.plan_file(allocation, tmp_path), planned)
    allocation = SlurmAllocation(job(tmp_path))
    newest = [by_hand.newest_plan(allocation, tmp_path, range(starts)) or {} for starts in (4, 0)]
    assert [plan.get("run") for plan in newest] == ["a/b", None]
    write_json(RunDir(tmp_path / "a" / "b").run_json, {})
    without = [path.name for path in by_hand.plans_without_run(tmp_path)]
    assert without == ["7-3-31003.json", "77-0-31000.json"]


@pytest.mark.parametrize(
    ("limit", "limit_min"),
    [("30:00", 30), ("1:30:00", 90), ("2-01:00:00", 2940), ("UNLIMITED", 5), ("INVALID", 5)],
)
def test_the_run_has_the_time_limit_and_the_nodes_of_the_job(start, commands, tmp_path, limit, limit_min):
    commands.add("squeue", f'case "$*" in *--jobs*) echo {limit};; esac')
    run, submission, options = start()
    record = read_json(tmp_path / "runs" / run / "run.json")
    assert (record["config"]["job"]["time_limit_min"], submission, options) == (limit_min, "0", "")
    assert record["config"]["resources"]["nodes"] == 2
    assert record["provenance"]["code"]["taken"] == "start"


def test_all_nodes_and_later_starts_have_one_submission(start, tmp_path, capsys):
    task = start()
    assert start(node=1) == task
    assert capsys.readouterr().err == ""
    (tmp_path / "my.yaml").write_text("no: config")
    assert start(restart=1) == start(restart=1, node=1) == task, "as planned, whatever the file says now"
    assert capsys.readouterr().err.count("warning: ") == 2
    assert start(restart=2, job_id="8") == 93


def test_a_job_with_the_id_of_an_earlier_one_does_not_continue_its_run(start):
    """Clusters that share a file system give the same ids to different jobs."""
    words = ["--config", "my.yaml", "--name", "other"]
    runs = [start(*words[:2])[0], start(*words, SLURM_STEP_LAUNCHER_PORT="9")[0]]
    assert [run.partition("/")[0] for run in runs] == ["my", "other"]


def test_a_second_job_does_not_start_a_run_that_is_on_its_way(start, capsys):
    start()
    assert start(job_id="8") == 93
    assert "(job 7)" in capsys.readouterr().err
    assert start(job_id="8", node=1) == 93, "as node 0"


def test_the_step_after_a_failure_takes_the_plan_of_its_own_start(start):
    run, submission, _ = start()
    assert start("--after-failure", "--config", "my.yaml") == (run, submission, "--after-failure")
    assert start("--after-failure", restart=1) == 69, "this start has planned no run"


@pytest.mark.parametrize(
    ("words", "nodes", "warned"),
    [
        ("--job.rendezvous_timeout_s 600", "2", "--wait=630 .*--wait={script}:"),
        ("--job.rendezvous_timeout_s 120", "2", None),
        ("--job.rendezvous_timeout_s 600", "1", None),
        ("--job.env.HF_TOKEN=hush", "1", "job.env.HF_TOKEN is a secret"),
        ("--job.env.NAME=x", "1", None),
    ],
)
def test_warnings_about_arguments(start, capsys, words, nodes, warned):
    start("--config", "my.yaml", *words.split(), SLURM_JOB_NUM_NODES=nodes)
    err = capsys.readouterr().err
    script = (by_hand.DEFAULT.parents[1] / "jobs" / "train.sbatch").read_text()
    wait = re.findall(r"--wait=(\d+)", script)[0]
    assert ("warning: " in err) is (warned is not None)
    assert warned is None or re.search(warned.format(script=wait), err)
    assert "hush" not in err


OLD = "import runpy, sys; sys.version_info = (3, 9)"
ENTRY = "runpy.run_module('jobs.submission.sbatch_entry', run_name='__main__')"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-S", "-m", "jobs.submission.sbatch_entry"], " has no psutil, pydantic, yaml; "),
        (["-c", f"{OLD}; {ENTRY}"], " is Python 3.9, 3.11 or newer is needed; "),
    ],
    ids=["nothing is installed", "an old Python"],
)
def test_another_python_is_refused_before_anything_is_planned(tmp_path, arguments, why):
    environ = {**os.environ, "PYTHONPATH": str(by_hand.run_code.CODE_ROOT)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (93, "", 1)
    assert why in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("module", [interpreter, sbatch_entry])
def test_a_python_as_old_as_36_can_compile_the_check_of_python(module):
    tree = ast.parse(inspect.getsource(module), feature_version=(3, 6))
    imports = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    assert "__future__" not in imports, "3.6 has no `annotations`"
