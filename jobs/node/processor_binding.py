"""The binding of a node's ranks to processors: facts of this node for `jobs.fabric.plan_binding`.

NVML runs in a process of its own, because a driver may hang. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.config.ranks import ranks_per_node
from jobs.core.environment import AddedVariable
from jobs.fabric import plan_binding
from jobs.node.allocation import Allocation
from jobs.node.child_process import output
from jobs.node.node_log import log_line

_GPUS_S = 20.0
"""Seconds that NVML may take."""
_DRIVER = Path("/proc/driver/nvidia/gpus")


def variable(config: Mapping[str, Any], allocation: Allocation | None) -> AddedVariable:
    """The processors of each rank of the node as an environment variable, with the reason."""
    chosen = _plan(config, allocation)
    if chosen.ranks:
        sizes = sorted({len(processors) for processors in chosen.ranks})
        log_line(f"binding: {' or '.join(map(str, sizes))} processors for each rank: {chosen.reason}")
    reason = chosen.reason if chosen.ranks else f"ranks are not bound: {chosen.reason}"
    return AddedVariable(plan_binding.variable_text(chosen), reason, "derived")


def _plan(config: Mapping[str, Any], allocation: Allocation | None) -> plan_binding.BindingPlan:
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
    gpus = _visible_gpus() if ranks > 1 and resources["device"] != "cpu" and _DRIVER.exists() else []
    near = plan_binding.gpus_of_ranks(plan_binding.numa_nodes(gpus), ranks, resources)
    return plan_binding.plan(plan_binding.read_processors(), cpuset, near, int(resources["threads_per_rank"]))


def _visible_gpus() -> list[str]:
    """PCI addresses of the GPUs that this job may use, in CUDA's order; none if NVML does not answer."""
    command = [sys.executable, "-m", "jobs.node.processor_binding"]
    try:
        addresses: list[str] = json.loads(output(command, _GPUS_S))
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    return addresses


def main() -> None:
    """Print the PCI addresses of the visible GPUs as JSON."""
    from jobs.fabric.gpu_links import read_nvml
    from jobs.node.node_info import visible_gpus

    reading = read_nvml()
    print(json.dumps([gpu["pci_id"] for gpu in visible_gpus(reading)] if reading else []))


if __name__ == "__main__":
    main()
