"""The process group of the ranks: agreement on their devices before it starts, and its collectives."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError, NodeFault
from disttrain.runtime import device, device_agreement
from disttrain.runtime.device_agreement import RankDevice, agree, choose, find_problem
from disttrain.runtime.process import RankInfo
from disttrain.runtime.process_group import World, open_world
from disttrain.runtime.run_output import record_failure


def config(**resources):
    return Config.model_validate({"resources": resources, "job": {"collective_timeout_s": 77.0}})


def set_rank(monkeypatch, rank, ranks, local=None):
    local = (rank, ranks) if local is None else local
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for name, value in zip(names, (rank, ranks, *local), strict=True):
        monkeypatch.setenv(name, str(value))


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def on_gpu(node, index=0, precision="bf16"):
    return RankDevice(node, f"cuda:{index}", "nccl", precision)


def on_cpu(node):
    return RankDevice(node, "cpu", "gloo", "bf16")


def without(node, problem):
    return RankDevice(node, problem=problem, message="no device")


GPU_NODE = [on_gpu("a", 0), on_gpu("a", 1)]


@pytest.mark.parametrize(
    ("ranks", "problem", "rank", "message"),
    [
        ([*GPU_NODE, on_cpu("b")], "node", 2, "node b would train on cpu with gloo, but node a on cuda"),
        ([*GPU_NODE, on_cpu("b"), on_cpu("c")], "node", 2, "node b would train"),
        ([on_gpu("a"), RankDevice("b", "cuda:0", "gloo")], "node", 1, "node b would train on cuda with gloo"),
        (
            [on_gpu("a"), on_gpu("b", 0, "fp32")],
            "config",
            1,
            "precision.dtype=auto would be bf16 on node a, but",
        ),
        ([without("a", "config")] * 2, "config", 0, "node a: no device"),
        ([*GPU_NODE, without("b", "config")], "node", 2, "node b: no device"),
        ([without("a", "config"), without("b", "node")], "node", 1, "node b: no device"),
    ],
)
def test_the_node_that_differs_is_named(ranks, problem, rank, message):
    found = find_problem(ranks)
    assert (found.problem, found.rank, found.message[: len(message)]) == (problem, rank, message)


def test_a_node_whose_gpus_lack_the_kernel_is_named(monkeypatch):
    """Node `b` has older GPUs than node `a`."""
    ranks, made = [], Config.model_validate({"train": {"attention": "flash"}})
    monkeypatch.setattr(device_agreement, "choose_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
    for node, capability in (("a", (9, 0)), ("b", (7, 5))):
        monkeypatch.setattr("socket.gethostname", lambda node=node: node)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        ranks.append(choose(made, RankInfo(len(ranks), 2, 0, 1)))
    found = find_problem(ranks)
    assert (found.problem, found.rank) == ("node", 1)
    assert found.message.startswith("node b: train.attention=flash needs compute capability 8.0")


def test_every_rank_raises_the_verdict():
    store, ranks = dist.HashStore(), [*GPU_NODE, on_cpu("b"), on_cpu("b")]

    def join(rank):
        with pytest.raises(NodeFault, match="node b would train on cpu") as raised:
            agree(ranks[rank], rank, len(ranks), store)
        record = record_failure(raised.value, rank)
        return record.rank, record.cause

    with ThreadPoolExecutor(len(ranks)) as threads:
        assert set(threads.map(join, range(len(ranks)))) == {(2, "launch_failed")}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"precision": {"dtype": "tf32"}}, r"precision\.dtype=tf32 needs a GPU"),
        ({"parallel": {"backend": "nccl"}}, r"this rank .* CPU: parallel\.backend=nccl"),
        ({"train": {"attention": "cudnn"}}, r"train\.attention=cudnn needs a GPU"),
        ({"memory": {"offload_activations": True}}, "this rank trains on the CPU: .* needs a GPU"),
        ({"compile": {"scope": "blocks"}}, r"compile\.backend=inductor needs a C\+\+ compiler"),
        ({"compile": {"scope": "blocks", "backend": "eager"}}, None),
    ],
)
def test_settings_that_no_device_has_are_refused_before_the_process_group(wanted, message, monkeypatch):
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("a process group started"))
    monkeypatch.setattr("socket.gethostname", lambda: "cpu-07")
    monkeypatch.setenv("PATH", "/nowhere")
    made = Config.model_validate(wanted)
    if message is None:
        with open_world(made) as world:
            assert world.backend is None
        return
    with pytest.raises(ConfigError, match=f"^node cpu-07: {message}"), open_world(made):
        pass


@pytest.mark.parametrize("requested", ["auto", "shared"])
def test_a_node_whose_driver_is_broken_is_refused(monkeypatch, requested):
    """Two GPUs are on the bus, and CUDA finds none, in a world of one rank."""
    monkeypatch.setattr(device, "pci_gpus", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    with (
        pytest.raises(NodeFault, match="CUDA finds 0 of 2 NVIDIA GPUs"),
        open_world(config(device=requested)),
    ):
        pass


def test_a_broken_gpu_in_the_group_of_a_script_is_a_fault_of_its_own_node(monkeypatch):
    set_rank(monkeypatch, 3, 4)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(device_agreement, "choose", lambda *_: without("b", "node"))
    with pytest.raises(NodeFault, match="node b: no device") as fault, open_world(config(gpus_per_node=4)):
        pass
    assert fault.value.rank == 3


@pytest.mark.parametrize(
    ("requested", "gpus", "rank", "ranks", "taken", "backend"),
    [
        ("auto", 2, 1, 2, "cuda:1", "nccl"),
        ("auto", 4, 0, 1, "cuda:0", None),
        ("auto", 1, 1, 2, "cpu", "gloo"),
        ("cuda", 2, 1, 2, "cuda:1", "nccl"),
        ("cpu", 2, 1, 2, "cpu", "gloo"),
        ("shared", 4, 3, 4, "cuda:0", "gloo"),
    ],
)
def test_a_rank_takes_a_device_and_a_backend(monkeypatch, requested, gpus, rank, ranks, taken, backend):
    """Patches stand for GPUs and for the other ranks."""
    current, joined, timeouts = [], [], []
    set_rank(monkeypatch, rank, ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(device, "pci_gpus", lambda: gpus)
    monkeypatch.setattr(dist, "rendezvous", lambda *_, **__: iter([(dist.HashStore(), rank, ranks)]))
    if ranks > 1:
        monkeypatch.setattr(device_agreement, "agree", lambda *_: None)

    def join(backend, device_id, timeout, **_):
        joined.append((backend, device_id))
        timeouts.append(timeout)

    def new_group(backend, timeout):
        timeouts.append(timeout)
        return f"group of {backend}"

    monkeypatch.setattr(dist, "init_process_group", join)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "")  # restored at the end
    monkeypatch.delenv("TORCH_GLOO_LAZY_INIT")
    with open_world(config(gpus_per_node=ranks, device=requested, threads_per_rank=3)) as world:
        assert (str(world.device), world.backend) == (taken, backend)
        assert current == ([] if taken == "cpu" else [world.device])
        assert joined == ([(backend, world.device if backend == "nccl" else None)] if ranks > 1 else [])
        # through NCCL, control collectives would drain the device
        assert world.control == ("group of gloo" if backend == "nccl" else None)
        assert ("TORCH_GLOO_LAZY_INIT" in os.environ) is (backend == "nccl")
        assert set(timeouts) == ({timedelta(seconds=77)} if ranks > 1 else set())
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_interface_that_is_not_there_is_refused_where_nodes_use_it(monkeypatch, nodes):
    set_rank(monkeypatch, nodes - 1, nodes, (0, 1))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,nope0")
    opened = open_world(config(nodes=nodes, device="cpu"))
    if nodes == 1:
        with opened:
            return
    with pytest.raises(ConfigError, match=r"rank 1 has no interface 'nope0'; it has .*\blo\b"), opened:
        pass


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (2, 1)])
def test_a_world_of_another_shape_is_refused(nodes, gpus):
    with (
        pytest.raises(ConfigError, match="1 nodes x 1 ranks"),
        open_world(config(nodes=nodes, gpus_per_node=gpus)),
    ):
        pass


def test_a_group_has_the_timeout_of_the_config_and_stays_after_an_exception():
    opened = open_world(config(device="cpu"), dist.HashStore())
    with pytest.raises(RuntimeError, match="boom"), opened as world:  # noqa: PT012
        options = dist.group.WORLD._get_backend(world.device).options
        assert options._timeout == world.collective_timeout == timedelta(seconds=77)
        raise RuntimeError("boom")
    assert dist.is_initialized(), "its shutdown may wait for peers"
    dist.destroy_process_group()
    with open_world(config(device="cpu"), dist.HashStore()):
        pass
    assert not dist.is_initialized()


def test_collectives_are_marked_as_waiting_and_those_of_values_use_the_control_group(monkeypatch):
    is_waiting, calls = False, []

    @contextmanager
    def waiting():
        nonlocal is_waiting
        is_waiting = True
        yield
        is_waiting = False

    def called(name):
        def call(*_, group=None, async_op=False, **__):
            def record():
                calls.append((name, group, is_waiting))

            return SimpleNamespace(wait=record) if async_op else record()

        return call

    for name in ("all_reduce", "broadcast", "all_gather_object", "gather_object"):
        monkeypatch.setattr(dist, name, called(name))
    control = {"waiting": waiting, "control": "control"}
    world = World(0, 2, 0, 2, torch.device("cpu"), "nccl", **control)
    world.all_reduce(torch.zeros(1))
    world.broadcast(torch.zeros(1))
    world.all_gather_object(0)
    world.gather_object(0)
    world.all_reduce_max([0.0])
    names = ["all_reduce", "broadcast", "all_gather_object", "gather_object", "all_reduce"]
    assert calls == [
        (name, group, True) for name, group in zip(names, [None] * 2 + ["control"] * 3, strict=True)
    ]
