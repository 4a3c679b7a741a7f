"""Interception of the all-gathers and reduce-scatters of `fully_shard`.

FSDP2 calls them through objects that can be replaced (`set_custom_all_gather`, `set_custom_reduce_scatter`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

Make = Callable[[], dist.Work | None]
"""Runs a collective. On a CPU it returns None when done, or at once the work to wait for if asynchronous."""


class InterceptedCollective:
    """One of FSDP2's communication objects, with every collective passed through `call`.

    `call` receives a function that runs the collective, and its process group, and returns the function's
    result.
    """

    def __init__(self, comm: Any, call: Callable[[Make, dist.ProcessGroup], dist.Work | None]) -> None:
        self.comm = comm
        self.call = call
        self.allocate = comm.allocate

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, **how: Any
    ) -> dist.Work | None:
        def make() -> dist.Work | None:
            work: dist.Work | None = self.comm(
                output_tensor=output_tensor, input_tensor=input_tensor, group=group, **how
            )
            return work

        return self.call(make, group)


def install(module: FSDPModule, gather: Any, scatter: Any) -> None:
    """Replace the all-gather and reduce-scatter objects of a module."""
    module.set_custom_all_gather(gather)
    module.set_custom_reduce_scatter(scatter)


def param_groups(module: FSDPModule) -> list[Any]:
    """Parameter groups of a module, each gathered and scattered as one. Private in FSDP2: the only way to
    read the communication objects in use."""
    return list(module._get_fsdp_state()._fsdp_param_groups)
