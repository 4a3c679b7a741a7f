"""Processors of the ranks of a node: of the job, near their GPUs, and not shared."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from disttrain.records.processor_list import list_text
from disttrain.records.run_directory import PROCESSORS
from jobs.fabric.description import Fabric
from jobs.fabric.plan_binding import Processor, plan
from jobs.node.preflight import affinity, checks
from jobs.node.preflight.affinity import Affinity, affinity_defects
from jobs.node.preflight.checks import NodeFacts
from tests.support.processors import machine

GOOD = Affinity("0-15", ("0-3", "4-7", "8-11", "12-15"), ("0-7", "0-7", "8-15", "8-15"))


def messages(found: Affinity) -> list[str]:
    return [message for message, _ in affinity_defects(found)]


def test_ranks_near_their_gpus_with_processors_of_their_own() -> None:
    assert messages(GOOD) == []
    assert messages(replace(GOOD, near_gpus=("",) * 4)) == [], "unknown places"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"near_gpus": ("8-15", "8-15", "0-7", "0-7")}, "no processor of local ranks 0-3 is near its GPU"),
        (
            {"near_gpus": ("0-7", "0-7", "8-15", "16-31")},
            "the job has no processor near the GPU of local rank 3",
        ),
        (
            {"of_ranks": ("0-3", "3-7", "8-11", "12-15")},
            "local ranks 0-1 share processors, although each was to have its own",
        ),
    ],
)
def test_each_defect(changes: dict[str, object], message: str) -> None:
    assert messages(replace(GOOD, **changes)) == [message]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processors", "gpus"),
    [
        (machine(2, 4, 16, 2), [3, 3, 1, 1, 7, 7, 5, 5]),  # DGX A100 with four NUMA nodes in each socket
        (machine(2, 1, 56, 2), [0, 0]),  # DGX H100 with 2 or 4 ranks
        (machine(2, 1, 56, 2), [0, 0, 0, 0]),
        (machine(2, 1, 56, 2), [0, 0, 0, 0, 1, 1, 1, 1]),
        (machine(1, 4, 16, 1), [3, 3, 1, 1, 0, 0, 2, 2]),  # MI250X
    ],
)
def test_the_binding_of_a_whole_node_has_no_defect(processors: list[Processor], gpus: list[int]) -> None:
    chosen = plan(processors, range(len(processors)), gpus)
    near = [list_text(each.number for each in processors if each.numa_node == node) for node in gpus]
    found = Affinity(f"0-{len(processors) - 1}", [list_text(own) for own in chosen.ranks], near)
    assert affinity_defects(found) == []


def test_ranks_that_are_not_bound_share_processors_without_a_warning() -> None:
    assert messages(replace(GOOD, of_ranks=("0-15",) * 4, are_bound=False)) == []


def test_equal_defects_of_several_nodes_are_one_warning() -> None:
    bad = asdict(replace(GOOD, of_ranks=("0-15",) * 4))
    nodes = [NodeFacts(number, f"n{number}", 0.0, {}, 16, {}, affinity=bad) for number in range(2)]
    nodes.append(NodeFacts(2, "n2", 0.0, {}, 16, {}, affinity=asdict(GOOD)))
    (found,) = checks.check_affinity([*nodes, NodeFacts(3, "n3", 0.0, {}, 16, {})])
    assert (
        found.message == "nodes n0, n1: local ranks 0-3 share processors, although each was to have its own"
    )
    assert (found.check, found.severity, found.nodes) == ("affinity", "warning", ())


def test_processors_are_measured_as_the_ranks_get_them(fabric_of: Callable[[str], Fabric]) -> None:
    fabric = fabric_of("ndr")
    own = os.sched_getaffinity(0)
    first = min(own)
    found = affinity.measure({PROCESSORS: f"{first};9999"}, fabric, fabric.gpus[3:5], 3)
    # the kernel refuses the processors of rank 1, and rank 2 has none of its own
    assert found.of_ranks == [str(first), list_text(own), list_text(own)]
    assert found.near_gpus == ["0-47", "48-95", ""]
    assert (found.of_job, found.are_bound) == (list_text(own), True)
    assert os.sched_getaffinity(0) == own, "this process keeps its processors"
    assert not affinity.measure({}, fabric, (), 1).are_bound
