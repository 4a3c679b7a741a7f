"""Programs of other frameworks on a real Slurm: pre-empted, started again, finished."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import Job, preempt

PROGRAMS = Path(__file__).parents[1] / "support" / "programs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "signal"),
    [
        ("raw_ddp", "SIGTERM"),
    ],
)
def test_a_pre_empted_program_resumes(slurm: MiniCluster, tmp_path: Path, program: str, signal: str) -> None:
    shutil.copy(PROGRAMS / f"{program}.py", tmp_path)
    settings = ["resources.device=cpu", f"job.stop_signal={signal}", "job.time_limit_min=20"]
    options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--set", *settings]
    slurm.submit("run", *options, "--", f"{program}.py", cwd=tmp_path)
    (path,) = (tmp_path / "runs" / program).glob("*/run.json")
    job = Job(slurm, RunDir(path.parent))
    wait_until(lambda: checkpoints(job))
    preempt(slurm)
    assert job.wait_for_end().state == "done"
    left, last = (read_json(attempt.record) for attempt in job.attempts())
    assert (left["cause"], left["next"], last["cause"]) == ("preempted", "requeue", "finished")
    assert not left["failed_nodes"]
    result = read_json(tmp_path / "result.json")
    assert 0 < result["first"] < result["step"] == 60
    assert math.isfinite(result["loss"])


def checkpoints(job: Job) -> list[Path]:
    """Files that are written last in a checkpoint, or beside it."""
    names = ("state.pt",)
    return [path for name in names for path in job.run.checkpoints.rglob(name)]
