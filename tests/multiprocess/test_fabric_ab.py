"""An A/B experiment on two real ranks over gloo: a slow arm is a loss.

The verdict on an equal arm is wrong at times; `tests/unit/test_arms.py` counts how often on generated
durations.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from disttrain.records.comm_bench import FabricAb
from disttrain.records.json_files import read_json

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
RANK = """\
import sys
from jobs.arms.__main__ import main
sys.exit(main(sys.argv[1:], "tests.support.slow_arm"))
"""
OPTIONS = "--device=cpu --pairs=60 --block-s=0.05 --width=64 --layers=3 --rows=4 --bucket-mb=1"


def test_a_slow_arm_is_a_loss_and_an_equal_arm_is_measured_in_the_same_job(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DISTTRAIN_RUN_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-c", RANK, "TEST_SLEEP=1", "TEST_EQUAL=1", *shlex.split(OPTIONS)]
    ranks = [subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank)}) for rank in range(2)]
    try:
        assert [rank.wait(300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    found = FabricAb.model_validate(read_json(tmp_path / "fabric-ab.json"))
    slow, equal = found.alone
    assert (slow.variables, slow.verdict) == ({"TEST_SLEEP": "1"}, "loss")
    assert slow.ratio == pytest.approx(1 / 2, abs=0.2)
    assert (equal.variables, equal.verdict != "failed") == ({"TEST_EQUAL": "1"}, True)
    assert len(equal.with_s) == len(equal.without_s) == equal.pairs > 0
    assert (found.backend, found.nodes, found.ranks_per_node, found.complete) == ("gloo", 2, 1, True)
