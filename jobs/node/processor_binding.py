"""The binding of a node's ranks to processors: facts of this node for `jobs.fabric.plan_binding`. Standard
library only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from disttrain.config.ranks import ranks_per_node
from jobs.core.environment import AddedVariable
from jobs.fabric import plan_binding
from jobs.node.allocation import Allocation
from jobs.node.node_gpus import NodeGpus
from jobs.node.node_log import log_line


def variable(
    config: Mapping[str, Any], allocation: Allocation | None, read_gpus: Callable[[], NodeGpus]
) -> AddedVariable:
    """The processors of each rank of the node as an environment variable, with the reason.

    `read_gpus` reads the GPUs of the job by NVML, which takes seconds: it is called only if they matter.
    """
    chosen = _plan(config, allocation, read_gpus)
    if chosen.ranks:
        sizes = sorted({len(processors) for processors in chosen.ranks})
        log_line(f"binding: {' or '.join(map(str, sizes))} processors for each rank: {chosen.reason}")
    reason = chosen.reason if chosen.ranks else f"ranks are not bound: {chosen.reason}"
    return AddedVariable(plan_binding.variable_text(chosen), reason, "derived")


def _plan(
    config: Mapping[str, Any], allocation: Allocation | None, read_gpus: Callable[[], NodeGpus]
) -> plan_binding.BindingPlan:
    ranks, resources = ranks_per_node(config), config["resources"]
    if config["job"].get("binding", "auto") == "none":
        return plan_binding.BindingPlan((), "job.binding is none")
    if allocation is None:
        return plan_binding.BindingPlan((), "runs on this machine share its processors")
    cpuset = os.sched_getaffinity(0)
    allocated = allocation.processors_on_node()
    if allocated is not None and len(cpuset) > allocated:
        text = f"the job has {allocated} of the {len(cpuset)} processors that its processes may use"
        return plan_binding.BindingPlan((), f"{text}, and another job may be bound to the same ones")
    gpus = read_gpus().reading.gpus if ranks > 1 and resources["device"] != "cpu" else ()
    places = [gpu.pci.address for gpu in gpus]
    near = plan_binding.gpus_of_ranks(plan_binding.numa_nodes(places), ranks, resources)
    return plan_binding.plan(plan_binding.read_processors(), cpuset, near, int(resources["threads_per_rank"]))
