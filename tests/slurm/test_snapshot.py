"""The copy of the code that jobs run, on a real Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from tests.support.jobs import STANDIN, settled, submit, sweep_plan, wait_until
from tests.support.minicluster import MiniCluster
from tests.support.requeued import nothing_starts


@pytest.mark.parametrize("what", ["altered", "gone"])
def test_a_job_whose_code_is_not_what_it_was_is_refused(what: str, root: Path, on_slurm: MiniCluster) -> None:
    with nothing_starts(on_slurm):
        (action,) = submit(sweep_plan("a", nodes=2), SlurmScheduler(), root)
        code = root / read_json(root / "demo" / "a" / "run.json")["provenance"]["code"]["path"]
        if what == "gone":
            os.rename(code, root / "elsewhere")
            os.remove(f"{code}.tar")  # from which the job would restore it
        else:
            (code / "jobs" / "core" / "more.py").write_text("")
    ended = settled(root)["a"]
    assert (ended.state, ended.cause) == ("failed", "refused"), ended.message
    assert str(ended.message).startswith("the code copy of the run ")
    assert not (root / "demo" / "a" / "starts").exists()
    wait_until(lambda: "ExitCode=93:0" in on_slurm.ask("scontrol", "show", "job", str(action.job_id)))


def test_jobs_run_it_although_the_checkout_is_where_they_were_submitted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` would take the working directory first."""
    monkeypatch.chdir(STANDIN.parents[2])
    monkeypatch.setenv("DISTTRAIN_LAUNCHER", str(STANDIN.with_name("recording_launcher.sh")))
    submit(sweep_plan("a"), SlurmScheduler(), root)
    ended = settled(root)["a"]
    assert ended.state == "done", ended.message
    run = RunDir(root / "demo" / "a")
    code = read_json(run.run_json)["provenance"]["code"]
    first, *others = read_json(run.env_json)["variables"]["PYTHONPATH"]["value"].split(":")
    assert Path(first) == root / code["path"]
    assert others[-1] == code["source"]
