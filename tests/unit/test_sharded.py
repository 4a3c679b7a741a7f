"""A collective of `fully_shard` is a meeting on the clock, and says so where it is not among all ranks. It
stops an emulated model."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from disttrain.engine.exposed_comm import FsdpExposed, is_sharded
from disttrain.models.emulated_device import DeadlineTimer, pause_in_collectives
from disttrain.parallel.fully_shard_waits import comm_method, time_waits
from disttrain.runtime.process_group import World
from disttrain.telemetry.step_clock import COMPUTE, CONTROL_SYNC, REPLICATE_SYNC, SHARD_SYNC, HostClock

ON_CPU, ON_DEVICE = (
    World(rank=0, size=4, local_rank=0, local_size=4, device=torch.device(kind), backend=None)
    for kind in ("cpu", "cuda")
)


class Group:
    """A process group whose collectives take half a second."""

    def __init__(self, time: list[float], work: object = None) -> None:
        self.time, self.work = time, work

    def all_gather_single(self, *tensors_and_options):
        self.time[0] += 0.5
        return self.work

    reduce_scatter_single = all_gather_single


NOW, LATER = SimpleNamespace(asyncOp=False), SimpleNamespace(asyncOp=True)
"""Options of a collective."""


class ParamGroup:
    _all_reduce_hook = None
    post_forward_mesh_info = None
    device = torch.device("cpu")

    def __init__(self, group: Group) -> None:
        self.mesh_info = SimpleNamespace(replicate_mesh_dim=None, shard_process_group=group)


@pytest.fixture
def module(monkeypatch):
    """Makes a sharded module of groups, without torch's."""
    from torch.distributed.fsdp import FSDPModule

    class Sharded(FSDPModule, torch.nn.Linear):
        def __new__(cls, *args):
            return object.__new__(cls)

        def _get_fsdp_state(self):
            return self

    def make(*groups: Group) -> torch.nn.Module:
        made = Sharded(1, 1)
        object.__setattr__(made, "_fsdp_param_groups", [ParamGroup(group) for group in groups])
        return made

    return make


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (None, None),
        ("work", "an unshard was asynchronous, and the time that compute waited for it is unknown"),
    ],
)
def test_a_call_is_timed_as_control_synchronisation(module, work, reason):
    now = [0.0]
    clock, shard = HostClock(lambda: now[0]), Group(now, work)
    model = module(shard)
    assert is_sharded(model)
    assert comm_method(model, ON_CPU) == ("fsdp_custom_collectives", None)
    collectives = FsdpExposed(model, clock)
    clock.start()
    clock.switch(COMPUTE)
    now[0] += 2
    info = model._fsdp_param_groups[0].mesh_info
    answer = info.shard_process_group.all_gather_single(None, None, LATER if work else NOW)
    now[0] += 1
    clock.end_step()
    [step] = clock.finished()
    assert (step.phases[COMPUTE], step.calls, answer) == (3.0, {CONTROL_SYNC: [0.5]}, work)
    assert [collectives.missed(True), collectives.missed(True)] == [reason, None]
    collectives.close()
    assert info.shard_process_group is shard


def test_untimed_collectives_are_refused_with_the_reason(module):
    group = Group([0.0])
    assert comm_method(module(group, group), ON_CPU) == ("fsdp_custom_collectives", None)
    assert "waits are unknown" in comm_method(module(group), ON_DEVICE)[1]
    other_torch = module(group)
    del other_torch._fsdp_param_groups[0].mesh_info
    assert "waits are unknown" in comm_method(other_torch, ON_CPU)[1]


@pytest.mark.parametrize("who_is_first", ["telemetry", "emulation"])
def test_a_collective_stops_an_emulated_model_once_whoever_else_times_it(module, who_is_first):
    now = [0.0]
    clock, timer = HostClock(lambda: now[0]), DeadlineTimer(lambda: now[0], lambda _: None)
    model = module(Group(now))
    info = model._fsdp_param_groups[0].mesh_info

    def stops() -> float:
        """For how long one of each puts off what is due."""
        pause_in_collectives(model, timer)
        timer.start()
        began = now[0]
        info.shard_process_group.all_gather_single(None, None, NOW)
        info.shard_process_group.reduce_scatter_single(None, None, NOW)
        now[0] += 5  # so that the pass is late, however long it was stopped
        return now[0] - began - timer.end()

    if who_is_first == "emulation":
        assert stops() == 1.0
    before = info.shard_process_group
    collectives = FsdpExposed(model, clock)
    clock.start()
    assert [stops(), stops()] == [1.0, 1.0]
    clock.end_step()
    [step] = clock.finished()
    assert step.calls == {CONTROL_SYNC: [0.5] * 4}
    collectives.close()
    assert info.shard_process_group is before
    assert stops() == 1.0
    assert not timer.restarts


def _has_a_hook(group: ParamGroup) -> None:
    group._all_reduce_hook = print


def _is_of_another_torch(group: ParamGroup) -> None:
    del group.mesh_info


@pytest.mark.parametrize("change", [_has_a_hook, _is_of_another_torch])
def test_where_communication_cannot_be_seen_layers_begin_anew(module, change):
    timer, shard = DeadlineTimer(), Group([0.0])
    model = module(shard)
    change(model._fsdp_param_groups[0])
    pause_in_collectives(model, timer)
    assert timer.restarts


def test_a_collective_that_is_waited_for_elsewhere_lets_layers_begin_anew(module):
    timer = DeadlineTimer()
    model = module(Group([0.0], "work"))
    pause_in_collectives(model, timer)
    assert not timer.restarts
    info = model._fsdp_param_groups[0].mesh_info
    work = info.shard_process_group.all_gather_single(None, None, LATER)
    assert (work, timer.restarts) == ("work", True)


@pytest.mark.parametrize("emulated", [False, True])
def test_the_all_reduce_between_replicas_is_timed_within_their_group(module, emulated):
    now = [0.0]
    clock, shard, replicas = HostClock(lambda: now[0]), Group(now), Group(now)
    timer = DeadlineTimer(lambda: now[0], lambda _: None)
    model = module(shard)
    info = model._fsdp_param_groups[0].mesh_info
    info.replicate_mesh_dim, info.replicate_process_group = 0, replicas
    if emulated:
        pause_in_collectives(model, timer)
    collectives = FsdpExposed(model, clock)
    clock.start()
    timer.start()
    for last in (False, True):  # the gradients of two micro-batches
        clock.switch(COMPUTE)
        now[0] += 2
        info.shard_process_group.reduce_scatter_single(None, None, NOW)
        if last:
            info.replicate_process_group.reduce_scatter_single(None, None, NOW)
    now[0] += 1
    clock.end_step()
    [step] = clock.finished()
    assert step.phases[COMPUTE] == 5.0
    assert step.calls == {SHARD_SYNC: [0.5, 0.5], REPLICATE_SYNC: [0.5]}
    if emulated:
        assert timer.end() == pytest.approx(5.0), "6.5 s less 1.5 s in collectives"
    collectives.close()
    assert (info.replicate_process_group is replicas) is not emulated


def test_a_model_that_is_not_sharded_is_left_alone():
    timer = DeadlineTimer()
    pause_in_collectives(torch.nn.Linear(1, 1), timer)
    assert not timer.restarts


@pytest.mark.parametrize(("replicas", "dimensions"), [(None, (None, None)), (0, ("shard", "replicate"))])
def test_on_cuda_each_wait_of_the_compute_stream_is_timed_before_it_happens(
    module, monkeypatch, replicas, dimensions
):
    """With one buffer, the second reduction waits for the first, and the end for what was reduced last."""
    did = []
    model = module(Group([0.0]))
    [group] = model._fsdp_param_groups
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
