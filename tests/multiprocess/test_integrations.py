"""Programs of other frameworks, each stopped by its signal, then killed, then finished, in real processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import ATTEMPT, CHECKPOINT_DIR, RUN_DIR, SAVED, RunDir
from tests.support.jobs import wait_until

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "support" / "programs"
MEASURED = ["raw_ddp", "lightning_fit", "hf_trainer"]
STOPPED_AT, STEPS = 12, 20


class Program:
    """A program on two ranks in a run directory, as a job starts it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.run = name, folder, RunDir(folder / "runs" / name / "n2")
        self.run.checkpoints.mkdir(parents=True)

    def start(self, attempt: int, **variables: str) -> subprocess.Popen[bytes]:
        self.run.attempt(attempt).path.mkdir(parents=True)
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            RUN_DIR: str(self.run.path),
            ATTEMPT: str(attempt),
            CHECKPOINT_DIR: str(self.run.checkpoints),
            SAVED: str(self.run.checkpoints / "saved"),
        }
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        program = str(PROGRAMS / f"{self.name}.py")
        return subprocess.Popen([*launcher, program], cwd=self.folder, env=env | variables)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """Send the stop signal to each rank in the step at which it waits; the exit code of torchrun."""
        waits = [self.run.path / f"waits-{rank}" for rank in range(2)]
        wait_until(lambda: process.poll() is not None or all(path.exists() for path in waits))
        for path in waits:
            os.kill(int(path.read_text()), signal.SIGTERM)
        return process.wait()

    @property
    def result(self) -> dict:
        return read_json(self.folder / f"{self.name}.json")


@pytest.mark.parametrize("name", MEASURED)
def test_a_program_stops_together_survives_a_kill_and_finishes(name: str, tmp_path: Path) -> None:
    program = Program(name, tmp_path)
    assert program.stop(program.start(0)) == 0
    assert not (tmp_path / f"{name}.json").exists()
    killed = program.start(1)
    assert killed.wait() != 0
    assert program.start(2).wait() == 0
    result = program.result
    assert (result["first"], result["step"]) == (15, STEPS)
    assert math.isfinite(result["loss"])
    steps = [[line["step"] for line in read_jsonl(program.run.attempt(number).steps(0))] for number in (0, 2)]
    assert steps == [[*range(1, STOPPED_AT + 1)], [*range(16, STEPS + 1)]]
    metrics = Metrics.model_validate(read_json(program.run.metrics))
    assert (metrics.status, metrics.steps, metrics.steps_total) == ("completed", STEPS, STEPS)
    assert metrics.comm_method == "ddp_backward_tail"
    assert metrics.loss_history
    assert bool(metrics.eval_history) == (name != "raw_ddp")


@pytest.mark.parametrize("name", MEASURED)
def test_recorded_steps_agree_with_a_stopwatch_outside(name: str, tmp_path: Path) -> None:
    program = Program(name, tmp_path)
    assert program.start(2, STEP_S="0.1").wait() == 0
    lines = {line["step"]: line for line in read_jsonl(program.run.attempt(2).steps(0))}
    began = program.result["began"]
    recorded = sum(lines[step]["step_s"] + lines[step + 1]["gap_s"] for step in range(3, 19))
    assert recorded == pytest.approx(began["19"] - began["3"], rel=0.02)
