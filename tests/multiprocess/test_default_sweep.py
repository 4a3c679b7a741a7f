"""The command of the README, for real: submit, wait, report, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import submit as submit_py
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import Step
from docs.generate.records import FILES
from tests.support.tolerance import approx_losses

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 3000.0


def submit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "submit.py"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        stdin=subprocess.DEVNULL,
    )


def sweep_default(runs: Path, *more: str, node_counts: tuple[int, ...]) -> dict[int, tuple[RunDir, Metrics]]:
    """Run the default sweep on local nodes; run and metrics by node count."""
    nodes = [str(n) for n in node_counts]
    where = ("--runs", str(runs), "--cluster", "local")
    done = submit("sweep", "--nodes", *nodes, *where, "--wait", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for path in sorted((runs / "default").glob("n*")):
        run = RunDir(path)
        metrics = Metrics.model_validate(read_json(run.metrics))
        found[metrics.nodes] = (run, metrics)
    assert sorted(found) == list(node_counts)
    return found


def curve(metrics: Metrics) -> list[float]:
    return [point.loss for point in metrics.loss_history]


@pytest.fixture(autouse=True)
def own_queue(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))


SHORT = ("--set", "train.steps=12", "optim.warmup_steps=4", "train.eval_samples=64")


def test_short_sweep_end_to_end(tmp_path, capsys):
    """On 1 and 2 nodes; the slow test has 4. Queue, supervisor, agents, torchruns and gloo are real."""
    runs = tmp_path / "runs"
    found = sweep_default(runs, *SHORT, node_counts=(1, 2))
    reference = curve(found[1][1])
    assert len(reference) == 12
    assert curve(found[2][1]) == approx_losses(reference)
    for run, metrics in found.values():
        check_run_directory(run, metrics)
    two, metrics = found[2]
    assert (metrics.world_size, metrics.nodes, metrics.attempt) == (2, 2, 0)
    assert read_json(two.attempt(0).record)["exit_codes"] == {"0": 0, "1": 0}

    again = ["sweep", "--nodes", "1", "2", "--runs", str(runs), "--cluster", "local", "--json", *SHORT]
    assert submit_py.main(again) == 0
    assert len(RunDir(runs / "default" / "n1").attempts()) == 1, "done runs are kept"

    assert submit_py.main(["report", "default", "--runs", str(runs)]) == 0
    written = {path.name for path in (runs / "default" / "report").iterdir()}
    assert {"report.html", "report.md", "report.json"} <= written
    assert json.loads((runs / "default" / "report" / "report.json").read_text())

    capsys.readouterr()
    assert submit_py.main(["status", "--runs", str(runs), "--json"]) == 0
    states = [
        (run["state"], run["step"], run["steps"]) for run in json.loads(capsys.readouterr().out)["runs"]
    ]
    assert states == [("done", 12, 12)] * 2


def check_run_directory(run: RunDir, metrics: Metrics) -> None:
    """Every file of the run directory is there and valid by its own schema."""
    record = RunRecord.model_validate(read_json(run.run_json))
    assert record.run_key == metrics.run_key
    assert str(os.environ.get("HOME", "/nowhere")) not in json.dumps(metrics.dataset.model_dump())
    FILES["env"].model_validate(read_json(run.env_json))
    FILES["outcome"].model_validate(read_json(run.done))
    [attempt] = run.attempts()
    FILES["attempt"].model_validate(read_json(attempt.record))
    for rank in range(metrics.world_size):
        steps = [Step.model_validate(line) for line in read_jsonl(attempt.steps(rank))]
        assert len(steps) == metrics.steps
        assert attempt.rank_log(rank).exists()
    assert list(attempt.tensorboard.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)  # two trainings of 60 steps, the second with four ranks on two processors
def test_the_default_sweep_learns_the_same_on_every_node_count(tmp_path):
    shorter = ("--set", "train.steps=60", "train.eval_samples=256")
    found = sweep_default(tmp_path / "runs", *shorter, node_counts=(1, 4))
    bits = {}
    for nodes, (run, metrics) in found.items():
        check_run_directory(run, metrics)
        bits[nodes] = metrics.eval_history[-1].metrics["bits_per_byte"]
        assert metrics.dataset.unigram_entropy_bits is not None
        assert bits[nodes] <= metrics.dataset.unigram_entropy_bits - 0.5
        assert curve(metrics)[:50] == approx_losses(curve(found[1][1])[:50])
    assert bits[4] == pytest.approx(bits[1], rel=0.01)
    for notebook in sorted((ROOT / "analysis").glob("*.ipynb")):
        execute(notebook, tmp_path / "runs" / "default")


def execute(notebook: Path, sweep: Path) -> None:
    """Run all cells in a kernel, from the notebook's folder."""
    cells = nbformat.read(notebook, as_version=4)
    client = NotebookClient(cells, timeout=WITHIN_S, kernel_name="python3")
    client.execute(
        cwd=str(notebook.parent),
        env={**os.environ, "DISTTRAIN_SWEEP": str(sweep), "DISTTRAIN_AGAINST": str(sweep)},
    )
    outputs = [output for cell in cells.cells for output in cell.get("outputs", [])]
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in outputs), notebook
