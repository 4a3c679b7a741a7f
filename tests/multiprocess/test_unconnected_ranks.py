"""Ranks that train apart, found by their connections: real torchrun, real gloo."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.core.processes import children_of
from jobs.node.hang import UnconnectedRanks
from jobs.node.rendezvous import reserve_port
from tests.support.jobs import wait_until

pytestmark = pytest.mark.multiprocess

APART = "import torch\n"
JOINED = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
"""
THEN_WAIT = """\
import os, pathlib, signal, sys
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
signal.pause()
"""


@pytest.mark.parametrize(("script", "apart"), [(APART, True), (JOINED, False)], ids=["apart", "joined"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_without_a_process_group_are_unconnected(
    nodes: int, script: str, apart: bool, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    (tmp_path / "script.py").write_text(script + THEN_WAIT)
    ranks, clock = 2 // nodes, itertools.count(step=100)
    with reserve_port() as port:
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={nodes}", f"--nproc-per-node={ranks}"),
            *("--master-addr=127.0.0.1", f"--master-port={port.getsockname()[1]}"),
        ]
        launches = [
            subprocess.Popen([*command, f"--node-rank={node}", tmp_path / "script.py", ready])
            for node in range(nodes)
        ]
        try:
            wait_until(lambda: len(list(ready.iterdir())) == 2)
            for torchrun in launches:
                watch = UnconnectedRanks(nodes, after_s=60.0, now=lambda: next(clock))
                watch.sample(children_of(torchrun.pid))
                assert watch.ranks is None, "too early for a verdict"
                watch.sample(children_of(torchrun.pid))
                assert watch.ranks == (ranks if apart else None)
        finally:
            for torchrun in launches:
                torchrun.terminate()
            for torchrun in launches:
                torchrun.wait()
