"""Collectives of `fully_shard` on the step clock, and beside an emulated model, which they stop."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from disttrain.engine.exposed_comm import FsdpExposed, is_sharded
from disttrain.models.emulated_device import DeadlineTimer, pause_in_collectives
from disttrain.parallel.fully_shard_waits import comm_method, time_waits
from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import COMPUTE, CONTROL_SYNC, REPLICATE_SYNC, SHARD_SYNC, StepClock

ON_CPU, ON_DEVICE = (
    World(rank=0, size=4, local_rank=0, local_size=4, device=torch.device(kind), backend=None)
    for kind in ("cpu", "cuda")
)
NOW, LATER = SimpleNamespace(asyncOp=False), SimpleNamespace(asyncOp=True)
"""Options of a collective."""


class Group:
    """A process group whose collectives take half a second."""

    def __init__(self, time, work=None):
        self.time, self.work = time, work

    def all_gather_single(self, *tensors_and_options):
        self.time[0] += 0.5
        return self.work

    reduce_scatter_single = all_gather_single


class ParamGroup:
    _all_reduce_hook = None
    post_forward_mesh_info = None
    device = torch.device("cpu")

    def __init__(self, group):
        self.mesh_info = SimpleNamespace(replicate_mesh_dim=None, shard_process_group=group)


class Sharded(FSDPModule, torch.nn.Linear):
    """A sharded module of one group, without torch's."""

    def __new__(cls, *args):
        return object.__new__(cls)

    def __init__(self, group):
        super().__init__(1, 1)
        object.__setattr__(self, "_fsdp_param_groups", [ParamGroup(group)])

    def _get_fsdp_state(self):
        return self


@pytest.fixture
def rank():
    """A rank of a sharded model, whose time passes at `now`."""
    now = [0.0]
    clock, timer = StepClock(lambda: now[0]), DeadlineTimer(lambda: now[0], lambda _: None)
    model = Sharded(Group(now))
    [group] = model._fsdp_param_groups
    return SimpleNamespace(now=now, clock=clock, timer=timer, model=model, group=group, info=group.mesh_info)


@pytest.mark.parametrize(("work", "options", "reason"), [(None, NOW, None), ("work", LATER, "asynchronous")])
def test_a_call_is_timed_as_control_synchronisation(rank, work, options, reason):
    shard = rank.info.shard_process_group
    shard.work = work
    assert is_sharded(rank.model)
    assert comm_method(rank.model, ON_CPU) == ("fsdp_custom_collectives", None)
    collectives = FsdpExposed(rank.model, rank.clock)
    rank.clock.start()
    rank.clock.switch(COMPUTE)
    rank.now[0] += 2
    assert rank.info.shard_process_group.all_gather_single(None, None, options) == work
    rank.now[0] += 1
    rank.clock.end_step()
    [step] = rank.clock.finished()
    assert (step.phases[COMPUTE], step.calls) == (3.0, {CONTROL_SYNC: [0.5]})
    found = collectives.missed(True)
    assert (found and reason in found, collectives.missed(True)) == (reason and True, None)
    collectives.close()
    assert rank.info.shard_process_group is shard


def has_a_hook(group):
    group._all_reduce_hook = print


def is_of_another_torch(group):
    del group.mesh_info


@pytest.mark.parametrize("change", [has_a_hook, is_of_another_torch])
def test_collectives_that_cannot_be_timed_are_refused_and_let_layers_begin_anew(rank, change):
    assert "waits are unknown" in comm_method(rank.model, ON_DEVICE)[1]
    change(rank.group)
    method, reason = comm_method(rank.model, ON_CPU)
    assert (method, bool(reason)) == (None, True)
    pause_in_collectives(rank.model, rank.timer)
    assert rank.timer.restarts


def test_a_collective_that_is_waited_for_elsewhere_lets_layers_begin_anew(rank):
    pause_in_collectives(torch.nn.Linear(1, 1), rank.timer)
    pause_in_collectives(rank.model, rank.timer)
    assert not rank.timer.restarts
    rank.info.shard_process_group.group.work = "work"
    work = rank.info.shard_process_group.all_gather_single(None, None, LATER)
    assert (work, rank.timer.restarts) == ("work", True)


@pytest.mark.parametrize("is_first", ["telemetry", "emulation"])
def test_a_collective_stops_an_emulated_model_once_whoever_else_times_it(rank, is_first):
    def stops():
        """Seconds by which one of each postpones the deadlines."""
        pause_in_collectives(rank.model, rank.timer)
        rank.timer.start()
        began = rank.now[0]
        rank.info.shard_process_group.all_gather_single(None, None, NOW)
        rank.info.shard_process_group.reduce_scatter_single(None, None, NOW)
        rank.now[0] += 5  # so that the pass is late, however long it was stopped
        return rank.now[0] - began - rank.timer.end()

    if is_first == "emulation":
        assert stops() == 1.0
    before = rank.info.shard_process_group
    collectives = FsdpExposed(rank.model, rank.clock)
    rank.clock.start()
    assert [stops(), stops()] == [1.0, 1.0]
    rank.clock.end_step()
    [step] = rank.clock.finished()
    assert step.calls == {CONTROL_SYNC: [0.5] * 4}
    collectives.close()
    assert rank.info.shard_process_group is before
    assert (stops(), rank.timer.restarts) == (1.0, False)


def test_the_all_reduce_between_replicas_is_timed_within_their_group(rank):
    rank.info.replicate_mesh_dim, rank.info.replicate_process_group = 0, Group(rank.now)
    pause_in_collectives(rank.model, rank.timer)
    before = rank.info.replicate_process_group
    collectives = FsdpExposed(rank.model, rank.clock)
    rank.clock.start()
    rank.timer.start()
    for last in (False, True):  # the gradients of two micro-batches
        rank.clock.switch(COMPUTE)
        rank.now[0] += 2
        rank.info.shard_process_group.reduce_scatter_single(None, None, NOW)
        if last:
            rank.info.replicate_process_group.reduce_scatter_single(None, None, NOW)
    rank.clock.end_step()
    [step] = rank.clock.finished()
    assert (step.phases[COMPUTE], step.calls) == (4.0, {SHARD_SYNC: [0.5, 0.5], REPLICATE_SYNC: [0.5]})
    assert rank.timer.end() == pytest.approx(4.0), "5.5 s less 1.5 s in collectives"
    collectives.close()
    assert rank.info.replicate_process_group is before


@pytest.mark.parametrize(("replicas", "dimensions"), [(None, (None, None)), (0, ("shard", "replicate"))])
def test_on_cuda_each_wait_of_the_compute_stream_is_timed_before_it_happens(
    rank, monkeypatch, replicas, dimensions
):
    """With one buffer, the second reduction waits for the first, and the end for what was reduced last."""
    did, model, group = [], rank.model, rank.group
    group.mesh_info.replicate_mesh_dim = replicas
    group.device = torch.device("cuda")
    group._all_gather_result = None
    group.device_handle = SimpleNamespace(
        current_stream=lambda: SimpleNamespace(wait_event=lambda event: did.append(f"wait {event}"))
    )
    states = [SimpleNamespace(event=None), SimpleNamespace(event="scattered")]
    group.comm_ctx = SimpleNamespace(
        reduce_scatter_states=[], reduce_scatter_max_input_buffers=1, _last_post_reduce_events={1: "reduced"}
    )
    for name in ("wait_for_unshard", "post_backward", "finalize_backward"):
        setattr(group, name, partial(did.append, name))
    before = vars(group).copy()
    assert comm_method(model, ON_DEVICE) == ("fsdp_stream_waits", None)

    @contextmanager
    def timed(dimension):
        did.append(("begin", dimension))
        yield
        did.append("end")

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    restore = time_waits(model, timed)
    group.wait_for_unshard()
    group._all_gather_result = SimpleNamespace(all_gather_event="gathered")
    group.wait_for_unshard()
    group.post_backward()
    group.comm_ctx.reduce_scatter_states = states
    group.post_backward()
    group.finalize_backward()
    gathers, reduces = (("begin", dimension) for dimension in dimensions)
    assert did == [
        "wait_for_unshard",
        *(gathers, "wait gathered", "end", "wait_for_unshard"),
        "post_backward",
        *(gathers, "wait scattered", "end", "post_backward"),
        *(gathers, "wait scattered", "end", reduces, "wait reduced", "end", "finalize_backward"),
    ]
    restore()
    assert group.wait_for_unshard is before["wait_for_unshard"]
