"""Programs of other frameworks on a real Slurm: pre-empted, resumed, killed, resumed, finished."""

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

FOLDER = Path(__file__).parents[1] / "support" / "programs"
UNEDITED = {
    "nanogpt_loop": (["--out_dir={checkpoint_dir}"], ["job.resume_args=--init_from=resume"]),
    "ignite_engine": (["--output_dir={checkpoint_dir}"], ["job.resume_args=--resume_from={checkpoint}"]),
}
"""Programs that import nothing of this project: arguments, and those of a start that resumes."""
PROGRAMS = ["raw_ddp", "lightning_fit", "fabric_loop", "hf_trainer", "accelerate_loop", *UNEDITED]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # fourteen processes import torch and a framework, three times
def test_programs_resume_after_a_pre_emption_and_after_a_killed_rank(
    slurm: MiniCluster, tmp_path: Path
) -> None:
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--set", "resources.device=cpu"]
    jobs = {}
    for program in PROGRAMS:
        always, resumed = UNEDITED.get(program, ((), ()))
        given = ["job.time_limit_min=30", *resumed]
        slurm.submit("run", *options, *given, "--", f"{program}.py", *always, cwd=tmp_path)
        (path,) = (tmp_path / "runs" / program).glob("*/run.json")
        jobs[program] = Job(slurm, RunDir(path.parent))
    wait_until(lambda: all(len([*job.run.path.glob("waits-?")]) == 2 for job in jobs.values()), 600)
    slurm.ask("scontrol", "update", "partition=gpu", "GraceTime=300")  # fourteen processes end at once
    try:
        preempt(slurm)
        over = ("done", "failed")
        wait_until(lambda: all(job.state.state in over for job in jobs.values()), within_s=1200)
        ends = {program: job.state.state for program, job in jobs.items()}
    finally:
        slurm.ask("scontrol", "update", "partition=gpu", "GraceTime=30")
    assert ends == dict.fromkeys(PROGRAMS, "done")
    for program, job in jobs.items():
        left, killed, last = (read_json(attempt.record) for attempt in job.attempts())
        assert (left["cause"], left["next"], left["failed_nodes"]) == ("preempted", "requeue", []), program
        assert set(left["exit_codes"].values()) == {1 if program in UNEDITED else 0}
        assert (killed["cause"], killed["next"]) == ("killed", "requeue")
        assert killed["failed_nodes"] == [killed["nodes"][1]]
        assert "rank 1 was ended by SIGKILL" in killed["message"]
        assert last["cause"] == "finished"
        result = read_json(tmp_path / f"{program}.json")
        assert (result["first"], result["step"]) == (15, 20), program
        assert math.isfinite(result["loss"])
