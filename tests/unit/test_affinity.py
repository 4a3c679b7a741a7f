"""Processors of the job near the GPUs of its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

from jobs.checks.node_checks import check_nodes
from jobs.checks.node_facts import NodeFacts, ranks_far_from_gpus
from jobs.fabric.description import Fabric


def test_a_job_without_processors_on_the_numa_node_of_a_gpu(
    fabric_of: Callable[[str], Fabric], monkeypatch
) -> None:
    fabric = fabric_of("ndr")  # four GPUs on each NUMA node of 48 processors
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert ranks_far_from_gpus(fabric, fabric.gpus[3:6], 3) == [1, 2]
    assert ranks_far_from_gpus(fabric, fabric.gpus[3:6], 1) == []
    assert ranks_far_from_gpus(fabric, (), 2) == []


def test_equal_defects_of_several_nodes_are_one_warning() -> None:
    nodes = [NodeFacts(number, f"n{number}", 0.0, {}, 16, {}, far_from_gpus=[0, 1]) for number in range(2)]
    (found,) = check_nodes([*nodes, NodeFacts(3, "n3", 0.0, {}, 16, {})])
    assert found.problem == "nodes n0, n1: the job has no processor near the GPU of local ranks 0-1"
    assert (found.key, found.severity, found.hosts) == ("affinity", "warning", ())
