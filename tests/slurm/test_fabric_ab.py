"""An A/B experiment on two nodes of a real Slurm: a variable without effect, and one that breaks its arm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.minicluster import MiniCluster

OPTIONS = "--pairs=9 --block-s=0.05 --width=64 --layers=3 --rows=4 --bucket-mb=1 --minutes=4"


@pytest.mark.slow
def test_variables_are_compared_within_one_job(slurm: MiniCluster, tmp_path: Path) -> None:
    settings = ["NCCL_ALGO=Ring", "GLOO_SOCKET_IFNAME=ib9"]
    options = ["--cluster", "slurm", "--nodes", "2", "--device", "cpu", *OPTIONS.split()]
    printed = slurm.submit("fabric", "ab", *settings, *options, "--wait", "--json", cwd=tmp_path)
    (found,) = json.loads(printed)["fabric_ab"].values()
    without_effect, broken = found["alone"]
    assert (found["backend"], found["nodes"], found["ranks_per_node"]) == ("gloo", 2, 1)
    assert without_effect["verdict"] in ("equivalent", "undecided")
    assert without_effect["pairs"] == 9
    assert broken["verdict"] == "failed"
    assert "has no interface 'ib9'" in broken["reason"]
    assert found["complete"]
