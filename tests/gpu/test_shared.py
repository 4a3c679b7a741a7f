"""Several ranks on one real GPU, through gloo: how a program for many GPUs is tried on one."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config.config_tree import Config
from disttrain.records.json_files import read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from disttrain.runtime.process_group import World
from tests.multiprocess.test_train import SMALL, alone, make_config, train_on
from tests.support.ranks import Ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

FORWARD_S, BACKWARD_S = 0.02, 0.04
EMULATED = {
    "model": {"kind": "emulated", "layers": 4, "layer_mb": 0.25, "forward_s": FORWARD_S,
              "backward_s": BACKWARD_S, "optimizer_s": 0.0},
    "data": {"kind": "synthetic", "shape": [8], "classes": 2, "samples": 512, "valid_samples": 4},
    "train": {"steps": 12, "local_batch_size": 4, "log_every": 5},
    "telemetry": {"warmup_steps": 3, "sinks": [], "profiled_steps": 0},
    "parallel": {"ddp": {"bucket_mb": 0.25}},
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks(2, nodes=1, device="shared")
    yield ranks
    ranks.close()


def shared(base: dict[str, Any], **sections: dict[str, Any]) -> Config:
    resources = {"nodes": 1, "gpus_per_node": 2, "device": "shared"}
    made = make_config(base, 2, **sections).as_dict() | {"resources": resources}
    return Config.model_validate(made)


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    return list(read_jsonl(RunDir(folder).attempt(0).steps(rank)))


def test_emulated_ranks(ranks: Ranks, tmp_path: Path) -> None:
    metrics: Metrics = ranks.call(train_on, shared(EMULATED), tmp_path)[0]
    assert (metrics.backend, metrics.device) == ("gloo", torch.cuda.get_device_name(0))
    assert not metrics.oversubscribed, "sleeping ranks do not disturb each other"
    assert metrics.measured_steps == 9
    for rank in range(2):
        steps = lines(tmp_path, rank)
        for step in steps:
            assert sum(step[name] for name in PHASES) == pytest.approx(step["step_s"], abs=1e-5)
            assert step["comm_exposed_s"] > 0
        assert statistics.median(step["compute_s"] for step in steps) > 0.9 * (FORWARD_S + BACKWARD_S)


def test_a_real_model_learns_what_one_rank_on_a_cpu_does(ranks: Ranks, tmp_path: Path) -> None:
    sections = {
        "train": {"steps": 20, "global_batch_size": 8, "local_batch_size": None},
        "optim": {"name": "sgd", "lr": 0.1},
    }
    one = train_on(alone(), make_config(SMALL, 1, **sections), tmp_path / "one")
    two: Metrics = ranks.call(train_on, shared(SMALL, **sections), tmp_path / "two")[0]
    assert two.backend == "gloo"
    assert two.oversubscribed
    losses = [[point.loss for point in metrics.loss_history] for metrics in (one, two)]
    assert len(losses[0]) == 20
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def agree_behind_queued_work(world: World) -> tuple[list[float], list[int], bool]:
    """The results of two control collectives, and whether they waited for the device."""
    torch.cuda._sleep(4_000_000_000)  # cycles: seconds
    done = torch.cuda.Event()
    done.record()
    agreed = world.all_reduce_max([float(world.rank)]), world.all_gather_object(world.rank)
    waited = done.query()
    torch.cuda.synchronize()
    return *agreed, waited


@pytest.mark.parametrize("device", ["shared", "cuda"])
def test_no_control_collective_waits_for_the_device(ranks: Ranks, device: str) -> None:
    if device == "shared":
        found = ranks.call(agree_behind_queued_work)
    elif torch.cuda.device_count() < 2:
        pytest.skip("NCCL takes a GPU for each rank, and there is one")
    else:
        on_own = Ranks(2, nodes=1, device=device)
        try:
            found = on_own.call(agree_behind_queued_work)
        finally:
            on_own.close()
    assert found == [([1.0], [0, 1], False)] * 2
