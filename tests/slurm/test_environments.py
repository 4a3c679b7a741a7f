"""Ranks on an environment of their own, while submit.py and the agents run on one without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from tests.support.environments import environment
from tests.support.minicluster import SUBMIT, MiniCluster
from tests.support.requeued import own_program, preempt_and_finish

SHELL = """\
python -m torch.distributed.run --nnodes $1 --node-rank $2 --master-addr $3 --master-port $4 \\
  train.py || exit
python -c 'import sys; print(sys.prefix)'
"""


@pytest.mark.slow
def test_ranks_of_a_shell_script_are_stopped_and_resume_on_an_environment_of_their_own(
    slurm: MiniCluster, tmp_path: Path
) -> None:
    agent, ranks = (environment(tmp_path / name, only_torch=name == "ranks") for name in ("agent", "ranks"))
    go = own_program(tmp_path)
    (tmp_path / "run.sh").write_text(SHELL)
    options = ["--cluster", "slurm", "--nodes", "2", "--no-report", "--set", "resources.device=cpu"]
    options += ["job.launcher=node", f"job.python={ranks}"]
    words = ["bash", "run.sh", "{nnodes}", "{node_rank}", "{master_addr}", "{master_port}"]
    slurm.ask(f"{agent}/bin/python", str(SUBMIT), "run", *options, "--", *words, cwd=tmp_path)
    run = preempt_and_finish(slurm, tmp_path, go)
    before, last = run.attempts()
    assert read_json(before.record)["message"] == "exited with code 0 after its stop signal"
    for node in range(2):
        assert last.rank_log(node).read_text().endswith(f"{ranks}\n")
        assert f"{agent}/bin/python -P" in last.node_log(node).read_text()
