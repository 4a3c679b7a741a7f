"""Ranks in a container, agents outside, on a real Slurm; the container is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from tests.support.containers import stand_ins
from tests.support.environments import environment
from tests.support.minicluster import MiniCluster
from tests.support.requeued import own_program, preempt_and_finish


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "launcher"), [("apptainer", "torchrun"), ("apptainer", "rank"), ("pyxis", "torchrun")]
)
def test_ranks_in_a_container_are_stopped_and_resume(
    kind: str, launcher: str, slurm: MiniCluster, tmp_path: Path
) -> None:
    go = own_program(tmp_path)
    env = environment(tmp_path / "python", only_torch=True)
    commands, python = stand_ins(tmp_path, env, slurm.env["PATH"])
    profile = {
        "container": {"kind": kind, "image": "x.sif"},
        "setup": [f"export PATH='{commands}':$PATH"],
    }
    (tmp_path / "site.yaml").write_text(json.dumps(profile))
    options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--profile", "./site.yaml"]
    options += ["--set", "resources.device=cpu", f"job.launcher={launcher}", f"job.python={python}"]
    slurm.submit("run", *options, "--", "train.py", cwd=tmp_path)
    run = preempt_and_finish(slurm, tmp_path, go)
    for attempt in run.attempts():
        for node in range(2):
            log = attempt.node_log(node).read_text()
            assert f" {python} " in log
            assert read_json(attempt.node_record(node))["packages"]["torch"]
            assert ("nsenter" in log, "apptainer exec" in log) == (kind == "pyxis", kind == "apptainer")
