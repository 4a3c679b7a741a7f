"""The program in docs/your-code.md on a real Slurm: stopped by a pre-emption, started again, finished."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.status.run_state import read_runs
from tests.support.jobs import wait_until
from tests.support.minicluster import SUBMIT, MiniCluster
from tests.support.requeued import own_program, preempt, preempt_and_finish

SBATCH = SUBMIT.parent / "jobs" / "train.sbatch"
HOLD = """\
import os, pathlib, signal, time

if os.environ["RANK"] == "1":  # its node records its exit later than node 0
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), os.kill(os.getpid(), signal.SIGKILL)))
pathlib.Path(os.environ["DISTTRAIN_RUN_DIR"], f"began-{os.environ['RANK']}").touch()
time.sleep(3600)
"""


@pytest.mark.slow
def test_a_script_is_stopped_by_its_signal_and_started_again(slurm: MiniCluster, tmp_path: Path) -> None:
    go = own_program(tmp_path)
    options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--set", "resources.device=cpu"]
    slurm.submit("run", *options, "--", "train.py", cwd=tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('edited after the submission')")
    run = preempt_and_finish(slurm, tmp_path, go)
    first = run.attempt(0)
    assert len(set(read_json(first.record)["nodes"])) == 2
    for number in range(2):
        assert "SIGTERM to process" in first.node_log(number).read_text()
    (state,) = json.loads(slurm.submit("status", "--json", cwd=tmp_path))["runs"]
    assert (state["state"], state["stale"]) == ("done", True)


@pytest.mark.slow
def test_a_preempted_script_without_a_handler_is_requeued_and_no_node_is_at_fault(
    slurm: MiniCluster, tmp_path: Path
) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    slurm.ask("scontrol", "update", "partition=gpu", "GraceTime=15")
    try:
        options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--set", "resources.device=cpu"]
        slurm.submit("run", *options, "--", "hold.py", cwd=tmp_path)
        (path,) = (tmp_path / "runs" / "hold").glob("*/run.json")
        run = RunDir(path.parent)
        wait_until(lambda: len(list(run.path.glob("began-*"))) == 2)
        preempt(slurm)
        wait_until(lambda: (read_json_or_none(run.attempt(0).record) or {}).get("ended"))
        left = read_json(run.attempt(0).record)
        assert (left["cause"], left["next"], left["failed_nodes"]) == ("preempted", "requeue", [])
    finally:
        slurm.ask("scontrol", "update", "partition=gpu", "GraceTime=30")


@pytest.mark.slow
def test_a_script_is_started_by_hand_and_by_one_array(
    slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hello.py").write_text(
        "import os\nprint('hello', os.environ['RANK'], os.environ['WORLD_SIZE'])\n"
    )
    (tmp_path / "own.yaml").write_text("command: hello.py\nresources: {device: cpu, nodes: 2}\n")
    slurm.submit("sweep", "own.yaml", "--repeats", "2", "--cluster", "slurm", "--no-report", cwd=tmp_path)
    by_hand = ["sbatch", "--wait", "--nodes=2", str(SBATCH), "--config", "own.yaml", "--name", "hand"]
    monkeypatch.setenv("DISTTRAIN_PYTHON", sys.executable)
    slurm.ask(*by_hand, cwd=tmp_path)
    wait_until(lambda: all(state.state == "done" for state in read_runs(tmp_path / "runs")))
    found = read_runs(tmp_path / "runs")
    assert [f"{state.sweep}/{state.name}" for state in found] == ["hand/n2", "own/n2-r0", "own/n2-r1"]
    assert {str(state.job_id).partition("_")[2] for state in found[1:]} == {"0", "1"}
    for state in found:
        assert state.run.attempt(0).rank_log(1).read_text() == "hello 1 2\n"
