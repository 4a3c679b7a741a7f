"""A collective of `fully_shard` is a meeting on the clock, and says so where it is not among all ranks."""

import pytest
import torch

from disttrain.telemetry.phases import COMPUTE, HostClock
from disttrain.telemetry.sharded import Collectives, is_sharded, not_timed
from disttrain.world import World

ON_CPU, ON_DEVICE = (
    World(rank=0, size=4, local_rank=0, local_size=4, device=torch.device(kind), backend=None)
    for kind in ("cpu", "cuda")
)


class Comm:
    def __init__(self, time: list[float], work: object) -> None:
        self.time, self.work = time, work

    def allocate(self) -> None: ...

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        self.time[0] += 0.5
        return self.work


class Group:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks


class ParamGroup:
    _all_reduce_hook = None

    def __init__(self, comm: Comm) -> None:
        self._all_gather_comm = self._reduce_scatter_comm = comm


@pytest.fixture
def module(monkeypatch):
    """Makes a sharded module of a `Comm`, without a process group."""
    from torch.distributed.fsdp import FSDPModule

    class Sharded(FSDPModule, torch.nn.Linear):
        def __new__(cls, *args):
            return object.__new__(cls)

        def _get_fsdp_state(self):
            return self

    def make(*comms: Comm) -> torch.nn.Module:
        made = Sharded(1, 1)
        object.__setattr__(made, "_fsdp_param_groups", [ParamGroup(comm) for comm in comms])
        return made

    return make


@pytest.mark.parametrize(
    ("ranks", "work", "reason"),
    [
        (4, None, None),
        (2, None, "a collective was among 2 of 4 ranks"),
        (4, "work", "an unshard was asynchronous, and what compute waited for it is not known"),
    ],
)
def test_a_call_is_a_meeting(module, ranks, work, reason):
    now = [0.0]
    clock, comm = HostClock(lambda: now[0]), Comm(now, work)
    model = module(comm)
    assert is_sharded(model)
    assert not_timed(model, ON_CPU) is None
    collectives = Collectives(model, ON_CPU, lambda: clock)
    clock.start()
    clock.switch(COMPUTE)
    now[0] += 2
    [group] = model._fsdp_param_groups
    answer = group._all_gather_comm(
        output_tensor=None, input_tensor=None, group=Group(ranks), async_op=bool(work)
    )
    now[0] += 1
    clock.end_step()
    [(_, parts)] = clock.finished()
    assert (parts[COMPUTE], parts[7:], answer) == (3.0, [0.5], work)
    assert [collectives.missed(True), collectives.missed(True)] == [reason, None]
    collectives.close()
    assert group._all_gather_comm is comm


def test_what_could_not_be_timed_is_refused_with_the_reason(module):
    comm = Comm([0.0], None)
    assert not_timed(module(comm), ON_DEVICE).startswith("on cuda the collectives of fully_shard run beside")
    assert "several groups of one module" in not_timed(module(comm, comm), ON_CPU)
    other_torch = module(comm)
    del other_torch._fsdp_param_groups
    assert not_timed(other_torch, ON_CPU).endswith("does not let the collectives of fully_shard be exchanged")
