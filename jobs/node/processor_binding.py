"""Whether torchrun binds the ranks of a node to the processors of their GPUs' NUMA nodes (`--numa-binding`).

torchrun ends where it cannot bind a rank, so the agent requests the binding only where it will succeed.
Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import Any

from disttrain.config.ranks import ranks_per_node
from disttrain.records.processor_list import list_text
from jobs.checks.gpu_health import NodeGpus
from jobs.core.environment import AddedVariable
from jobs.fabric.description import Fabric
from jobs.node.allocation import Allocation
from jobs.node.node_log import log_line

OPTION = ("--numa-binding", "node")
"""Of torchrun: each rank gets all processors of the NUMA node of its GPU that the job may use."""
_HELPER_THREADS = 1
"""Processors of a rank beside those of its compute threads: for the threads of NCCL and telemetry."""


def variable(
    config: Mapping[str, Any],
    allocation: Allocation | None,
    fabric: Fabric,
    read_gpus: Callable[[], NodeGpus],
) -> AddedVariable:
    """The processors of the job on this node if torchrun binds the ranks, else empty; with the reason.

    `read_gpus` reads the GPUs of the job by NVML, which takes seconds: it is called only if they matter.
    """
    cpuset = os.sched_getaffinity(0)
    obstacle = _obstacle(config, allocation, fabric, read_gpus, cpuset)
    if obstacle is not None:
        return AddedVariable("", f"ranks are not bound: {obstacle}", "derived")
    log_line("binding: each rank uses the processors of the NUMA node of its GPU")
    reason = f"torchrun binds the ranks ({' '.join(OPTION)}); these are the processors of all of them"
    return AddedVariable(list_text(cpuset), reason, "derived")


def _obstacle(
    config: Mapping[str, Any],
    allocation: Allocation | None,
    fabric: Fabric,
    read_gpus: Callable[[], NodeGpus],
    cpuset: Collection[int],
) -> str | None:
    """The first reason not to bind the ranks."""
    ranks, resources = ranks_per_node(config), config["resources"]
    if config["job"].get("binding", "auto") == "none":
        return "job.binding is none"
    if allocation is None:
        return "runs on this machine share its processors"
    if ranks == 1:
        return "one rank uses all processors of the job"
    if resources["device"] in ("cpu", "shared"):
        return "no rank has a GPU of its own"
    if shutil.which("numactl") is None:
        return "torchrun needs the command numactl, which this node lacks"
    gpus = read_gpus().reading.gpus[:ranks]
    if len(gpus) < ranks:
        return "no GPU was found for each rank"
    places = {gpu.pci.address: gpu.pci for gpu in fabric.gpus}
    known = [places.get(gpu.pci.address, gpu.pci) for gpu in gpus]
    if any(pci.numa_node is None for pci in known):
        return "the kernel does not name the NUMA node of each GPU"
    near = [frozenset(pci.cores).intersection(cpuset) for pci in known]
    needed = int(resources["threads_per_rank"]) + _HELPER_THREADS
    if any(len(processors) < needed * near.count(processors) for processors in near):
        return "the job has too few processors on the NUMA nodes of its GPUs"
    return None
