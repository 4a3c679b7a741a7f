"""Fields of `Metrics` about the machines that a run trains on."""

from __future__ import annotations

from typing import Any

import torch

from disttrain.config.config_tree import Config
from disttrain.records.process_limits import usable_processors
from disttrain.runtime.device import device_name, machine_id, nccl_version
from disttrain.runtime.process_group import World


def describe_machine(world: World, config: Config) -> dict[str, Any]:
    """Nodes, ranks, device, versions, and whether threads share processors. All ranks together."""
    waits = config.model.kind == "emulated"  # and uses no processor
    own = 0 if waits else config.resources.threads_per_rank
    threads = own + config.data.workers
    machines = world.all_gather_object((machine_id(), threads))
    busy = sum(count for machine, count in machines if machine == machine_id())
    cpus = len(usable_processors())
    shared = config.resources.device == "shared" and len(machines) > 1 and not waits
    return {
        "emulated": config.emulated,
        "nodes": world.nodes,
        "ranks_per_node": world.local_size,
        "world_size": world.size,
        "device": device_name(world.device),
        "backend": world.backend,
        "torch": torch.__version__,
        "nccl": nccl_version(),
        "cpu_count": cpus,
        "oversubscribed": busy > cpus if world.device.type == "cpu" else shared,
    }
