"""A command that imports nothing of this project and hangs: torchrun, gloo and the stacks of real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import submit as submit_py
from disttrain.records.json_files import read_json, read_jsonl
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import read_state
from tests.support.jobs import ended_afterwards, settled, states, wait_until

pytestmark = pytest.mark.multiprocess

SCRIPT = """\
import faulthandler, os, pathlib, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
saved = pathlib.Path(os.environ["DISTTRAIN_CHECKPOINT_DIR"], "state")
saved.touch()

def load():
    time.sleep(600)

for step in range(9):
    if step == 3 and dist.get_rank() == 1:
        load()
    dist.all_reduce(torch.ones(1))
    print(step, flush=True)
"""


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_rank_that_hangs_is_named_with_its_line(
    nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SCRIPT)
    shape = ["--nodes", str(nodes), "--gpus-per-node", str(2 // nodes), "--set", "resources.device=cpu"]
    limit = ["--set", "job.idle_timeout_min=0.4"]
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        options = ["--cluster", "local", "--no-report", "--name", "s"]
        assert submit_py.main(["run", *options, *shape, *limit, "--", "own.py"]) == 0
        (queued,) = states(tmp_path / "runs").values()
        attempt = queued.run.attempt(0)
        wait_until(lambda: attempt.hardware(0).exists())
        wait_until(lambda: "no progress" in str(read_state(queued.run).message))
        assert read_state(queued.run).rss_bytes, "status --long has the newest sample"
        (ended,) = settled(tmp_path / "runs").values()
    assert (ended.state, ended.cause, ended.retryable) == ("failed", "hung", True)
    assert "rank 1 was silent and idle for " in str(ended.message)
    assert str(ended.message).endswith("at own.py:10 in load")
    assert read_json(attempt.record)["checkpoint_after"] is not None
    for rank, line in ((0, "in all_reduce"), (1, "line 10 in load")):
        assert line in attempt.stack(rank).read_text()
    assert {line["rank"] for line in read_jsonl(attempt.host_samples(nodes - 1))} >= {1}
    env = read_json(ended.run.env_json)["variables"]
    assert env["TORCH_FR_DUMP_TEMP_FILE"]["value"] == str(attempt.nccl_trace)
    capsys.readouterr()
    assert submit_py.main(["show", "--json", f"s/{ended.name}"]) == 0
    assert json.loads(capsys.readouterr().out)["hardware"]["rss_peak_bytes"] > 0
