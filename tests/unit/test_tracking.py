"""A process of a command continues the runs of W&B and MLflow that an earlier start began."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain.records.run_directory import ATTEMPT, RunDir
from disttrain.records.tracking import tracking_variables
from jobs.node import interpreter

NAMES = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")
SHOW = f"import json, os; print(json.dumps({{name: os.environ.get(name) for name in {NAMES}}}))"
LOG = "import mlflow; run = mlflow.start_run(); mlflow.log_metric('loss', 1.0, step={attempt})"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "sweep" / "n2").identified(create=True)


class Starts:
    """Processes of a run with these variables, each of one line of Python."""

    def __init__(self, run: RunDir, folder: Path, **variables: str) -> None:
        self.run, self.folder, self.variables = run, folder, variables

    def start(self, line: str, rank: int = 0, attempt: int = 0) -> str:
        (self.folder / "line.py").write_text(line.replace("{attempt}", str(attempt)))
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))
        }
        own = tracking_variables(self.run, "key") | {"RANK": str(rank), ATTEMPT: str(attempt)}
        command = [sys.executable, interpreter.__file__, str(self.folder), str(self.folder), "line.py"]
        subprocess.run(command, env=inherited | own | self.variables, check=True)
        log = self.folder / f"rank-{rank:05d}.log"
        text = log.read_text()
        log.unlink()
        return text


def test_ranks_beside_the_first_have_runs_of_their_own_in_wandb(run: RunDir, tmp_path: Path) -> None:
    starts = Starts(run, tmp_path)
    ids = [
        json.loads(starts.start(SHOW, rank, attempt))["WANDB_RUN_ID"] for attempt in (0, 1) for rank in (0, 1)
    ]
    first = tracking_variables(run, "key")["WANDB_RUN_ID"]
    assert ids == [first, f"{first}-1"] * 2
    of_user = Starts(run, tmp_path, WANDB_RUN_ID="mine")
    assert json.loads(of_user.start(SHOW, rank=1))["WANDB_RUN_ID"] == "mine"


@pytest.mark.timeout(300)  # three processes import mlflow
def test_a_later_start_continues_the_mlflow_run_of_the_first(run: RunDir, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    starts = Starts(run, tmp_path, MLFLOW_TRACKING_URI=store, MLFLOW_EXPERIMENT_NAME="mine")
    for attempt in range(2):
        starts.start(LOG, attempt=attempt)
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("mine").experiment_id
    [one] = client.search_runs([experiment])
    assert [point.step for point in client.get_metric_history(one.info.run_id, "loss")] == [0, 1]


def test_a_store_that_fails_costs_a_line_and_the_program_starts(run: RunDir, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    starts = Starts(run, tmp_path, MLFLOW_TRACKING_URI="sqlite:////proc/no/such/folder/mlflow.db")
    text = starts.start("print('trains')", attempt=1)
    assert "the MLflow run of earlier starts is unknown: " in text
    assert text.endswith("trains\n")


def test_the_variables_are_the_same_for_all_starts_and_others_for_a_directory_made_anew(run: RunDir) -> None:
    before = tracking_variables(run, "key")
    assert tracking_variables(RunDir(run.path), "key") == before
    (path,) = (run.path / "attempts").iterdir()
    path.rename(path.with_name("id-anew"))
    after = tracking_variables(run, "key")
    assert after["WANDB_RUN_ID"] == "key-anew"
    assert {name for name in after if after[name] != before[name]} == {"WANDB_RUN_ID", "MLFLOW_RUN_CONTEXT"}
