"""Control collectives run between hosts, in a group of their own beside that of training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from disttrain.runtime.process_group import FailedOnRank, World
from tests.support.ranks import Ranks

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).resolve().parents[2]


def with_control(world: World) -> World:
    """A world of NCCL on a device that does not exist: nothing can be put on it."""
    known = {**vars(world), "device": torch.device("cuda", 99), "backend": "nccl"}
    return World(**known | {"control": dist.new_group(backend="gloo")})


def agree(world: World) -> list[Any]:
    world = with_control(world)
    rank = world.rank
    gathered = world.gather_object(rank)
    assert gathered == ([0, 1] if rank == 0 else None)
    return [world.all_reduce_max([rank, -rank]), world.all_gather_object(rank), world.on_all_ranks(str)]


def test_they_use_no_device(two_ranks: Ranks) -> None:
    assert two_ranks.call(agree) == [[[1.0, 0.0], [0, 1], ["", ""]]] * 2


def broadcast_transposed(world: World) -> list[list[float]]:
    tensor = torch.full((2, 3), float(world.rank)).t()
    return list(world.broadcast(tensor).tolist())


def test_a_tensor_with_gaps_is_broadcast(two_ranks: Ranks) -> None:
    assert two_ranks.call(broadcast_transposed) == [[[0.0, 0.0]] * 3] * 2


def agree_while_training_communicates(world: World) -> tuple[list[float], float]:
    control, gradient = with_control(world), torch.ones(1)
    work = dist.all_reduce(gradient, async_op=True) if world.rank == 0 else None
    agreed = control.all_reduce_max([world.rank])
    control.gather_object(agreed)
    work = work or dist.all_reduce(gradient, async_op=True)
    work.wait()
    return agreed, gradient.item()


def test_they_do_not_wait_for_a_collective_of_training(two_ranks: Ranks) -> None:
    assert two_ranks.call(agree_while_training_communicates) == [([1.0], 2.0)] * 2


def fail_on_last(world: World) -> str:
    with pytest.raises(FailedOnRank) as raised:
        with_control(world).on_all_ranks(lambda: 1 // (world.size - 1 - world.rank))
    return str(raised.value)


def test_an_exception_reaches_all_ranks(two_ranks: Ranks) -> None:
    assert {"rank 1" in message for message in two_ranks.call(fail_on_last)} == {True}


LEAVING = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
from disttrain.__main__ import exit_process
from disttrain.runtime.process_group import World
import torch

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
if rank == 1:
    time.sleep(600)
world = World(rank=0, size=2, local_rank=0, local_size=2, device=torch.device("cpu"), backend="gloo")
world.start_all_reduce_max([1.0])
print("begun", flush=True)
exit_process(int(sys.argv[3]))
"""


def test_a_failed_rank_does_not_wait_at_its_exit_for_an_agreement_that_no_peer_has_begun(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVING, str(rank), store, "1"], cwd=ROOT, stdout=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    try:
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline() == b"begun\n"
        assert ranks[0].wait(timeout=20) == 1
        assert ranks[1].poll() is None
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
