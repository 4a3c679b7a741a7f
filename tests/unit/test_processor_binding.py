"""When the agent has torchrun bind the ranks to processors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from jobs.checks.gpu_health import NodeGpus
from jobs.fabric.description import Fabric
from jobs.fabric.gpus import NvmlReading
from jobs.node import node_environment


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "torchrun binds the ranks (--numa-binding node)"),
        ({"binding": "none"}, "ranks are not bound: job.binding is none"),
        ({"ranks": 1}, "ranks are not bound: one rank uses all processors of the job"),
        ({"device": "cpu"}, "ranks are not bound: no rank has a GPU of its own"),
        ({"numactl": None}, "ranks are not bound: torchrun needs the command numactl"),
        ({"allocation": None}, "ranks are not bound: runs on this machine share its processors"),
        ({"ranks": 9}, "ranks are not bound: no GPU was found for each rank"),
        ({"usable": range(8, 56)}, "torchrun binds the ranks"),
        ({"usable": range(40, 52)}, "ranks are not bound: the job has too few processors"),
        ({"usable": range(48)}, "ranks are not bound: the job has too few processors"),
        ({"kind": "efa_p5"}, "torchrun binds the ranks"),
    ],
)
def test_ranks_are_bound_where_torchrun_can(
    fields: dict[str, object], reason: str, fabric_of: Callable[[str], Fabric], monkeypatch
) -> None:
    """Eight GPUs on two NUMA nodes of 48 processors."""
    given = {
        "ranks": 8, "device": "cuda", "numactl": "/usr/bin/numactl", "binding": "auto",
        "allocation": Mock(), "usable": range(96), "kind": "ndr",
    } | fields  # fmt: skip
    fabric = fabric_of(str(given["kind"]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(given["usable"]))
    monkeypatch.setattr(shutil, "which", lambda _: given["numactl"])
    resources = {"gpus_per_node": given["ranks"], "device": given["device"], "threads_per_rank": 1}
    config = Config.model_validate({"resources": resources, "job": {"binding": given["binding"]}}).as_dict()
    gpus = NodeGpus(8, (), NvmlReading(gpus=fabric.gpus))
    monkeypatch.setattr(node_environment, "node_gpus", lambda: gpus)
    found = node_environment.bound_processors(config, given["allocation"], fabric)
    assert found.reason.startswith(reason)
    assert bool(found.value) == reason.startswith("torchrun")
