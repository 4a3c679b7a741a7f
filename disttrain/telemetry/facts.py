"""The constants of a run, made once when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from disttrain.config.config_tree import Config
from disttrain.records.process_limits import usable_processors
from disttrain.runtime.device import device_name, machine_id, nccl_version
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class Communication:
    """How the communication of a run is measured."""

    method: str | None = None
    """Name of the method by which exposed communication is measured; None where none is."""
    reason: str | None = None
    """Reason why none is measured; None where it is, or where there is none."""
    profiles_collectives: bool = False
    """Whether steps are profiled for their collectives; possible also without a method."""
    groups: Mapping[Dimension, dist.ProcessGroup] = field(default_factory=dict)
    """This rank's process group of each dimension of a mesh with two."""
    compares_passes: bool = True
    """Whether the ranks exchange the same messages, and so can compare their exposed communication in the
    passes, which finds its transfer time. Without a comparison, all of it counts as waiting, and no step is
    profiled for collectives."""


@dataclass(frozen=True)
class RunFacts:
    """Constants of a run of a config, of a script's `Trainer`, or of a loop of one's own."""

    metrics: Mapping[str, Any]
    """The fields of `Metrics` that are constant: identity, machine, strategy, precision, plan, cost, data."""
    communication: Communication = Communication()
    tokens_per_sample: int | None = None
    """None where samples are not token sequences, or where their kind is unknown."""
    samples_are_images: bool = False
    peak_reason: str = "no peak was looked up"
    """Reason of a null `peak_flops`."""


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
