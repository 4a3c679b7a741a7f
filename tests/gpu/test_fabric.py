"""NCCL's own log and the binding near a GPU, on a machine that has one."""

import json
import os
import subprocess
import sys

import pytest
import torch

from analysis.results.network import judge
from disttrain.records.communication import NcclLog, NodeFabric
from tests.gpu.test_nvml import REASON

pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no GPU to ask: {REASON}")

RANKS = """
import json, os, sys
import torch, torch.distributed as dist
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process import RankInfo
from disttrain.telemetry.network import end_nccl_log, parse, request_nccl_log
from pathlib import Path
rank, size = int(sys.argv[1]), int(sys.argv[2])
attempt = RunDir(Path(sys.argv[3])).attempt(0)
attempt.path.mkdir(parents=True, exist_ok=True)
request_nccl_log(attempt, RankInfo(rank, max(size, 2), rank, max(size, 2)))
torch.cuda.set_device(rank)
store = dist.FileStore(sys.argv[3] + "/store", size)
dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=torch.device("cuda", rank))
tensor = torch.ones(1 << 20, device="cuda")
dist.all_reduce(tensor)
torch.cuda.synchronize()
if rank == 0:
    path = attempt.nccl_log(0)
    end_nccl_log(path)
    size_before = path.stat().st_size
    for _ in range(10):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    found = parse(path.read_text().splitlines()).model_dump()
    print(json.dumps(found | {"grown": path.stat().st_size - size_before}))
dist.destroy_process_group()
"""


def test_the_log_of_real_nccl_is_read_and_ends(tmp_path):
    size = min(torch.cuda.device_count(), 2)
    without = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_DEBUG")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(rank), str(size), str(tmp_path)], env=without,
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=110)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * size
    found = json.loads(outputs[0].splitlines()[-1])
    assert found["version"] == ".".join(map(str, torch.cuda.nccl.version()))
    assert found["network"]
    assert found["environment"]["NCCL_DEBUG"] == "INFO"
    assert found["grown"] == 0
    log = {name: value for name, value in found.items() if name != "grown"}
    verdict = judge("nccl", [NodeFabric(node=0, host="here", nccl=NcclLog.model_validate(log))])
    # one rank alone may have no channel
    expected = "as_expected" if found["transports"] else "unproven"
    assert verdict.verdict == expected, verdict.conclusion
    if size > 1:
        assert found["transports"]
        assert set(found["transports"]) <= {"P2P", "SHM"}
        assert found["choices"]
