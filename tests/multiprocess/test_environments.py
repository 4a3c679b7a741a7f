"""submit.py, agents and report on a Python without torch, ranks on one with torch and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from jobs.core.run_code import CODE_ROOT
from jobs.schedulers.local.scheduler import LocalScheduler
from tests.support.environments import environment
from tests.support.jobs import ended_afterwards, settled

pytestmark = pytest.mark.multiprocess

SCRIPT = """\
import importlib.util, json, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
own = [name for name in ("pydantic", "psutil", "yaml") if importlib.util.find_spec(name)]
print(json.dumps([sys.prefix, total.item(), own]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("environments")
    return {name: environment(root / name, only_torch=name == "ranks") for name in ("agent", "ranks")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SCRIPT)
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path


def submit(environments: dict[str, Path], *words: str) -> str:
    """The output of a verb on the Python without torch."""
    python = environments["agent"] / "bin" / "python"
    command = [python, CODE_ROOT / "submit.py", *words]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


OPTIONS = ("--cluster", "local", "--no-report", "--name", "s")


def test_ranks_run_on_another_python_than_the_agents(environments: dict[str, Path], folder: Path) -> None:
    ranks = str(environments["ranks"])
    named = ["--set", f"job.python={ranks}", "--", "own.py"]
    submit(environments, "run", *OPTIONS, "--gpus-per-node", "2", "--nodes", "2", *named)
    (done,) = settled(folder / "runs").values()
    attempt = done.run.attempt(0)
    assert done.state == "done", (attempt.node_log(0).read_text(), done.message)
    printed = [json.loads(attempt.rank_log(rank).read_text().splitlines()[-1]) for rank in range(4)]
    assert printed == [[ranks, 4.0, []]] * 4
    (seen,) = read_json(attempt.preflight)["nodes"]
    assert "torch" in seen["agreement"]
    assert "torch" in read_json(attempt.node_record(0))["packages"]
    submit(environments, "report", "s")
    assert read_json(folder / "runs/s/report/report.json")["excluded_runs"][0]["run"] == done.run.name


@pytest.mark.parametrize("python", ["agent", None])
def test_a_python_without_torch_is_refused_by_the_pre_flight(
    python: str | None, environments: dict[str, Path], folder: Path
) -> None:
    named = ["--set", f"job.python={environments[python]}"] if python else []
    submit(environments, "run", *OPTIONS, *named, "--", "own.py")
    (failed,) = settled(folder / "runs").values()
    assert (failed.state, failed.cause) == ("failed", "preflight_failed")
    seen = f"job.python='{environments['agent']}'" if python else "the Python of the job, "
    assert seen in str(failed.message)
    assert " without torch; job.python names " in str(failed.message)
    assert not (folder / "runs" / "excluded-nodes.json").exists(), "the node is not at fault"


def test_a_sweep_of_the_trainer_is_planned_without_torch(environments: dict[str, Path], folder: Path) -> None:
    plan = json.loads(submit(environments, "sweep", *OPTIONS, "--nodes", "1", "2", "--dry-run", "--json"))
    assert [each["nodes"] for each in plan["plans"]] == [1, 2]
