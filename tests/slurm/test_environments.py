"""Ranks on an environment of their own, while submit.py and the agents run on one without torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.status.run_state import read_state
from tests.slurm.test_own_script import PAGE
from tests.support.environments import environment
from tests.support.jobs import wait_until
from tests.support.minicluster import SUBMIT, MiniCluster
from tests.support.requeued import preempt

SHELL = """\
python -m torch.distributed.run --nnodes $1 --node-rank $2 --master-addr $3 --master-port $4 \\
  train.py --steps 150 || exit
python -c 'import sys; print(sys.prefix)'
"""


@pytest.mark.slow
def test_ranks_of_a_shell_script_are_stopped_and_resume_on_an_environment_of_their_own(
    slurm: MiniCluster, tmp_path: Path
) -> None:
    agent, ranks = (environment(tmp_path / name, only_torch=name == "ranks") for name in ("agent", "ranks"))
    (program,) = re.findall(r"```python\n(import argparse.*?)```", PAGE.read_text(), re.S)
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(
        program.replace("time.sleep(0.1)", f"time.sleep(0.01 if os.path.exists({str(go)!r}) else 1)")
    )
    (tmp_path / "run.sh").write_text(SHELL)
    options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--set", "resources.device=cpu"]
    options += ["job.launcher=node", f"job.python={ranks}"]
    words = ["bash", "run.sh", "{nnodes}", "{node_rank}", "{master_addr}", "{master_port}"]
    slurm.ask(f"{agent}/bin/python", str(SUBMIT), "run", *options, "--", *words, cwd=tmp_path)
    (path,) = (tmp_path / "runs" / "run").glob("*/run.json")
    run = RunDir(path.parent)
    logs = [run.attempt(0).rank_log(node) for node in range(2)]
    wait_until(lambda: all(log.exists() and "begins after step 0\n" in log.read_text() for log in logs))
    preempt(slurm)
    wait_until(lambda: (read_json_or_none(run.attempt(0).record) or {}).get("next"))
    go.touch()
    wait_until(lambda: read_state(run).state in ("done", "failed", "lost"))

    attempts = [read_json(attempt.record) for attempt in run.attempts()]
    ends = [(each["cause"], each["message"], each["next"]) for each in attempts]
    assert ends == [
        ("preempted", "exited with code 0 after its stop signal", "requeue"),
        ("finished", None, None),
    ]
    before, last = run.attempts()
    for node in range(2):
        stopped = re.search(rf"rank {node} stops after step (\d+)", before.rank_log(node).read_text())
        assert stopped is not None
        text = last.rank_log(node).read_text()
        assert f"rank {node} of 2 begins after step {stopped[1]}\n" in text
        assert text.endswith(f"{ranks}\n")
        assert f"{agent}/bin/python -P" in last.node_log(node).read_text()
