"""Device and backend of a rank on machines with and without GPUs, which patches stand for."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError, NodeFault
from disttrain.runtime import device, device_agreement
from disttrain.runtime.process_group import World, open_world


def config(**resources: Any) -> Config:
    return Config.model_validate({"resources": resources, "job": {"collective_timeout_s": 77.0}})


@pytest.fixture
def opened(monkeypatch):
    """Opens the world of a rank of one node; gives its device, its backend, and the devices chosen in torch.

    `opened(wanted, gpus, rank, ranks)`: `gpus` are visible on the node.
    """

    def open_(wanted: str, gpus: int, rank: int, ranks: int):
        chosen: list[torch.device] = []
        joined: list[tuple[str, torch.device | None]] = []
        timeouts: list[timedelta] = []
        where = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        for name, value in where.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
        monkeypatch.setattr(device, "pci_gpus", lambda: gpus)
        monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), rank, ranks)]))
        if ranks > 1:  # the other ranks do not exist
            monkeypatch.setattr(device_agreement, "agree", lambda *_: None)

        def join(backend: str, device_id: torch.device | None, timeout: timedelta, **_: object) -> None:
            joined.append((backend, device_id))
            timeouts.append(timeout)

        def new_group(backend: str, timeout: timedelta) -> str:
            timeouts.append(timeout)
            return f"group of {backend}"

        monkeypatch.setattr(dist, "init_process_group", join)
        monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "")  # restored at the end
        monkeypatch.delenv("TORCH_GLOO_LAZY_INIT")
        monkeypatch.setattr(dist, "new_group", new_group)
        threads = torch.get_num_threads()
        try:
            with open_world(config(gpus_per_node=ranks, device=wanted)) as world:
                bound = world.device if world.backend == "nccl" else None
                assert joined == ([(world.backend, bound)] if ranks > 1 else [])
                # through NCCL, control collectives would drain the device
                assert world.control == ("group of gloo" if world.backend == "nccl" else None)
                assert set(timeouts) == ({timedelta(seconds=77)} if ranks > 1 else set())
                assert ("TORCH_GLOO_LAZY_INIT" in os.environ) is (world.control is not None)
                return str(world.device), world.backend, [str(device) for device in chosen]
        finally:
            torch.set_num_threads(threads)

    return open_


@pytest.mark.parametrize(
    ("wanted", "gpus", "rank", "ranks", "taken", "backend"),
    [
        ("auto", 2, 1, 2, "cuda:1", "nccl"),
        ("auto", 4, 0, 1, "cuda:0", None),
        ("auto", 1, 1, 2, "cpu", "gloo"),
        ("auto", 0, 0, 1, "cpu", None),
        ("cuda", 2, 1, 2, "cuda:1", "nccl"),
        ("cpu", 2, 1, 2, "cpu", "gloo"),
        ("shared", 1, 0, 2, "cuda:0", "gloo"),
        ("shared", 1, 1, 2, "cuda:0", "gloo"),
        ("shared", 4, 3, 4, "cuda:0", "gloo"),
        ("shared", 1, 0, 1, "cuda:0", None),
    ],
)
def test_the_device_and_what_ranks_talk_through(opened, wanted, gpus, rank, ranks, taken, backend):
    chosen = [] if taken == "cpu" else [taken]
    assert opened(wanted, gpus, rank, ranks) == (taken, backend, chosen)


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        ("shared", 0, "resources.device=shared, but no CUDA device is visible"),
        (
            "cuda",
            1,
            "resources.device=cuda, but 1 CUDA devices are visible on this node, where resources.gpus_per",
        ),
    ],
)
def test_a_device_that_is_not_there_is_refused(monkeypatch, wanted, gpus, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(device, "pci_gpus", lambda: gpus)
    with pytest.raises(ConfigError, match=message):
        device.choose_device(wanted, 0, 2)


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_rank_computes_with_the_threads_of_the_config(wanted):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with open_world(config(threads_per_rank=wanted, device="cpu")):
            assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(threads)


def test_the_heartbeat_shows_each_collective(monkeypatch):
    waiting = False
    entered: list[tuple[str, bool]] = []

    @contextmanager
    def collective():
        nonlocal waiting
        waiting = True
        yield
        waiting = False

    for name in ("broadcast", "all_gather_object", "gather_object"):
        monkeypatch.setattr(dist, name, lambda *_, _name=name, **__: entered.append((_name, waiting)))

    def all_reduce(*_, async_op=False, **__):
        def enter():
            entered.append(("all_reduce", waiting))

        return SimpleNamespace(wait=enter) if async_op else enter()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    world = World(0, 2, 0, 2, torch.device("cpu"), "gloo", waiting=collective)
    world.all_reduce(torch.zeros(1))
    world.broadcast(torch.zeros(1))
    world.all_gather_object(0)
    world.gather_object(0)
    world.all_reduce_max([0.0])
    names = ["all_reduce", "broadcast", "all_gather_object", "gather_object", "all_reduce"]
    assert entered == [(name, True) for name in names]


def test_collectives_of_the_process_group_have_the_timeout_of_the_config():
    threads = torch.get_num_threads()
    try:
        with open_world(config(device="cpu"), dist.HashStore()) as world:
            group = dist.group.WORLD
            assert group is not None
            options = group._get_backend(world.device).options
            assert options._timeout == world.collective_timeout == timedelta(seconds=77)
    finally:
        torch.set_num_threads(threads)


def test_an_exception_leaves_the_process_group_without_its_shutdown(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    with pytest.raises(RuntimeError, match="boom"), open_world(config(device="cpu"), dist.HashStore()):
        raise RuntimeError("boom")
    assert dist.is_initialized(), "its shutdown may wait for peers"
    dist.destroy_process_group()


def test_a_broken_gpu_in_the_group_of_a_script_is_a_fault_of_its_own_node(monkeypatch):
    for name, value in {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 3, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    broken = device_agreement.RankDevice("b", problem="node", message="CUDA error")
    monkeypatch.setattr(device_agreement, "choose", lambda *_: broken)
    with pytest.raises(NodeFault, match="node b: CUDA error") as fault, open_world(config(gpus_per_node=4)):
        pass
    assert fault.value.rank == 3


def test_an_interface_that_is_not_there_is_refused_by_name(monkeypatch):
    names = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**names, "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    message = r"^GLOO_SOCKET_IFNAME=nope0: the node of rank 1 has no interface 'nope0'; it has .*\blo\b"
    with pytest.raises(ConfigError, match=message), open_world(config(nodes=2)):
        pass


def test_collectives_of_values_use_the_control_group(monkeypatch):
    groups = []
    monkeypatch.setattr(dist, "all_gather_object", lambda values, value, group=None: groups.append(group))
    monkeypatch.setattr(dist, "gather_object", lambda value, values, group=None: groups.append(group))
    work = SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op, group, async_op: groups.append(group) or work)
    world = World(0, 2, 0, 2, torch.device("cuda", 0), "nccl", control="control")  # type: ignore[arg-type]
    world.all_gather_object(1)
    world.gather_object(1)
    world.all_reduce_max([1.0])
    assert groups == ["control"] * 3
