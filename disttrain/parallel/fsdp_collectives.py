"""The all-gathers and reduce-scatters of `fully_shard`, for others to be told where they are made.

FSDP2 makes them through objects that may be exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

Make = Callable[[], dist.Work | None]
"""Makes a collective. On a CPU it gives None when that is done, or at once what to wait for, if asked to."""


class InterceptedCollective:
    """One of FSDP2's objects for communication, which makes the same calls through `call`.

    `call` gets what makes the collective and the group that it is among, and returns what that returned.
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
    """Have a module make its all-gathers and reduce-scatters with these objects."""
    module.set_custom_all_gather(gather)
    module.set_custom_reduce_scatter(scatter)


def param_groups(module: FSDPModule) -> list[Any]:
    """What of a module is communicated together. FSDP2 tells nobody else which objects it makes them with."""
    return list(module._get_fsdp_state()._fsdp_param_groups)
