"""Constants of a run that are not fields of `Metrics`, but determine fields or null reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import nn

from disttrain.parallel.base import Strategy
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.telemetry.null_reasons import DIFFERENT_COLLECTIVES, NOT_EMULATED


@dataclass
class RunMetadata:
    tokens_per_sample: int | None = None
    """None where samples are not token sequences, or where their kind is unknown."""
    samples_are_images: bool = False
    peak_reason: str = "no peak was looked up"
    """Reason of a null `peak_flops`."""
    emulation_late_reason: str = NOT_EMULATED
    """Reason of a null `emulation_late_s`."""
    exposed_comm_reason: str | None = None
    """Specific reason for unmeasured exposed communication; None where there is none."""
    profiles_collectives: bool = False
    """Whether steps are profiled for their collectives; possible also without exposed communication."""
    comm_groups: Mapping[Dimension, dist.ProcessGroup] = field(default_factory=dict)
    """This rank's process group of each dimension of a mesh with two."""
    unprofiled_reason: str | None = None
    """Specific reason why no step is profiled for its collectives; None where there is none."""
    compares_passes: bool = True
    """Whether the ranks compare their exposed communication in the passes, which finds its transfer time.
    Without a comparison, all of it counts as waiting."""


def communication_metadata(strategy: Strategy, parallel_model: nn.Module) -> dict[str, Any]:
    """The fields of `RunMetadata` on the communication of a strategy with the model that it made parallel."""
    compares = strategy.compares_collectives
    return {
        "profiles_collectives": strategy.comm_method is not None and compares,
        "unprofiled_reason": None if compares else DIFFERENT_COLLECTIVES,
        "compares_passes": compares,
        "exposed_comm_reason": strategy.comm_reason,
        "comm_groups": strategy.comm_groups(parallel_model),
    }
