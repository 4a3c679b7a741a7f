"""Binding of ranks to processors: disjoint, within the cpuset, near the GPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records.processor_list import list_text
from disttrain.records.run_directory import PROCESSORS
from disttrain.runtime.apply_binding import bind
from disttrain.runtime.device import usable_cpus
from jobs.fabric.plan_binding import (
    BindingPlan,
    Processor,
    gpus_of_ranks,
    numa_nodes,
    plan,
    read_processors,
    variable_text,
)
from tests.support.processors import machine

DGX = machine(2, 1, 56, 2)


@given(st.data())
def test_blocks_are_disjoint_within_the_cpuset_and_complete(data: st.DataObject) -> None:
    processors = machine(*(data.draw(st.integers(1, most)) for most in (2, 4, 6, 2)))
    numbers = [processor.number for processor in processors]
    cpuset = data.draw(st.sets(st.sampled_from(numbers), min_size=1))
    nodes = st.one_of(st.none(), st.integers(0, 8))
    gpus = data.draw(st.lists(nodes, min_size=1, max_size=10))
    threads = data.draw(st.integers(1, 4))
    found = plan(processors, cpuset, gpus, threads)
    assert found.reason
    if not found.ranks:
        assert not found.unused
        return
    assert len(found.ranks) == len(gpus)
    given_away = [number for rank in found.ranks for number in rank]
    assert len(given_away) == len(set(given_away))
    assert set(given_away) | set(found.unused) == cpuset
    assert set(given_away).isdisjoint(found.unused)
    assert len(found.unused) <= len(cpuset) / 4
    assert bool(found.unused) == ("unused" in found.reason)
    assert all(len(rank) > threads for rank in found.ranks)
    core_of = {processor.number: (processor.package, processor.core) for processor in processors}
    for rank in found.ranks:  # no core is divided
        own = {core_of[number] for number in rank}
        assert {number for number in cpuset if core_of[number] in own} == set(rank)


def test_eight_gpus_on_two_sockets_share_the_cores_of_their_socket() -> None:
    found = plan(DGX, range(224), [0, 0, 0, 0, 1, 1, 1, 1])
    assert found.unused == ()
    assert [len(rank) for rank in found.ranks] == [28] * 8
    assert found.ranks[0] == (*range(14), *range(112, 126))
    assert found.ranks[4] == (*range(56, 70), *range(168, 182))


def test_the_order_of_gpus_is_kept() -> None:
    """GPUs and NUMA nodes of an MI250X node are not numbered alike."""
    found = plan(machine(1, 4, 16, 1), range(64), [3, 3, 1, 1, 0, 0, 2, 2])
    assert [rank[0] for rank in found.ranks] == [48, 56, 16, 24, 0, 8, 32, 40]


def test_cores_of_a_node_without_gpu_go_to_the_same_socket_or_stay_unused() -> None:
    beside = plan(machine(1, 4, 4, 1), range(16), [0, 2])
    assert sum(map(len, beside.ranks)) == 16
    other_socket = plan(machine(2, 1, 8, 1), range(10), [0, 0])
    assert other_socket.unused == (8, 9)
    assert "2 processors of other sockets stay unused" in other_socket.reason


def test_each_rank_has_cores_of_the_numa_node_of_its_gpu_itself() -> None:
    """DGX A100 with four NUMA nodes in each socket, of which two have GPUs."""
    gpus = [3, 3, 1, 1, 7, 7, 5, 5]
    found = plan(machine(2, 4, 16, 2), range(256), gpus)
    assert [len(rank) for rank in found.ranks] == [32] * 8
    for rank, node in zip(found.ranks, gpus, strict=True):
        assert len({number for number in rank if number % 128 // 16 == node}) == 16
    odd = plan(machine(1, 2, 5, 1), range(10), [0, 0])
    assert [len(rank) for rank in odd.ranks] == [5, 5]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_one_socket_share_the_other_one_beside_cores_near_their_gpus(ranks: int) -> None:
    found = plan(DGX, range(224), [0] * ranks)
    near = [{number for number in rank if number % 112 < 56} for rank in found.ranks]
    assert [(len(own), len(rank)) for own, rank in zip(near, found.ranks, strict=True)] == [
        (112 // ranks, 224 // ranks)
    ] * ranks
    assert found.unused == ()
    assert (
        found.reason
        == "cores of the NUMA node of the rank's GPU, and an equal share of those of other sockets"
    )


def test_a_cpuset_away_from_the_gpus_is_shared_evenly() -> None:
    found = plan(machine(2, 1, 8, 1), range(8), [0, 1])
    assert found.ranks == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.reason == "an equal share of the cores of the job"


@pytest.mark.parametrize(
    ("cpuset", "ranks", "threads", "why"),
    [
        (range(2), 2, 1, "2 ranks with 1 compute threads each would share 2 processors"),
        (range(16), 1, 1, "one rank uses all processors of the job"),
        (range(8), 4, 2, "would share"),
        (range(20), 2, 1, "does not describe"),
    ],
)
def test_ranks_without_room_are_not_bound(cpuset, ranks: int, threads: int, why: str) -> None:
    found = plan(machine(1, 1, 16, 1), cpuset, [None] * ranks, threads)
    assert (found.ranks, found.unused) == ((), ())
    assert why in found.reason


def test_processors_of_this_machine_are_described() -> None:
    assert os.sched_getaffinity(0) <= {processor.number for processor in read_processors()}


def test_processors_and_gpus_are_read_from_sysfs(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology/physical_package_id").write_text(f"{number // 2}\n")
        (folder / "topology/core_id").write_text("0\n")
        (folder / f"node{number // 2}").mkdir()
    (tmp_path / "sys/devices/system/cpu/cpu4").mkdir()  # offline
    assert read_processors(tmp_path) == [Processor(n, n // 2, n // 2, 0) for n in range(4)]
    for address, node in {"0000:1a:00.0": "1", "0000:1b:00.0": "-1"}.items():
        (tmp_path / "sys/bus/pci/devices" / address).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / address / "numa_node").write_text(f"{node}\n")
    addresses = ["00000000:1A:00.0", "00000000:1B:00.0", "00000000:1C:00.0"]
    assert numa_nodes(addresses, tmp_path) == [1, None, None]


def test_ranks_that_share_a_gpu_share_its_numa_node() -> None:
    assert gpus_of_ranks([1, 0], 3, {"device": "shared"}) == [1, 1, 1]
    assert gpus_of_ranks([1, 0], 2, {"device": "auto"}) == [1, 0]
    assert gpus_of_ranks([], 2, {"device": "auto"}) == [None, None]


def test_a_rank_binds_itself_and_its_children() -> None:
    before = os.sched_getaffinity(0)
    chosen = min(before)
    text = variable_text(BindingPlan(((99999,), (chosen,)), "test"))
    try:
        bind({PROCESSORS: text, "LOCAL_RANK": "1"})
        with os.popen("nproc") as output:
            assert (os.sched_getaffinity(0), output.read()) == ({chosen}, "1\n")
        bind({PROCESSORS: text, "LOCAL_RANK": "0"})  # refused by the kernel
        assert os.sched_getaffinity(0) == {chosen}
    finally:
        os.sched_setaffinity(0, before)
    bind({PROCESSORS: "", "LOCAL_RANK": "0"})
    bind({})
    assert os.sched_getaffinity(0) == before


def test_processors_of_all_ranks_of_the_node_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert usable_cpus({PROCESSORS: "0,1;2,3"}) == 4
    assert usable_cpus({PROCESSORS: ""}) == usable_cpus({}) == 2


def test_lists_have_the_form_of_the_kernel() -> None:
    assert list_text({0, 1, 2, 3, 64, 66, 67}) == "0-3,64,66-67"
    assert list_text(()) == ""
