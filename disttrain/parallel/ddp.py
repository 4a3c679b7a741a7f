"""DistributedDataParallel: every rank holds the model, gradients are averaged in buckets during backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.sections import ParallelConfig
from disttrain.runtime.process_group import World

COMM_METHOD = "ddp_backward_tail"
"""From the end of this rank's own backward pass to the end of `backward()`, which waits for the buckets
still in flight. It holds waiting for peers and transfer together; communication hidden under compute
is not in it."""
PRIMES_BUCKETS = True
"""DDP lays its gradient buckets out anew after the first backward pass, by the order in which gradients
came. That changes the order of summation: a resumed process would sum its first step otherwise than the
one that never stopped, and from three ranks on that shows in the weights."""


def wrap(model: nn.Module, config: ParallelConfig, world: World) -> nn.Module:
    return DistributedDataParallel(
        model,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        static_graph=config.static_graph,
        find_unused_parameters=config.find_unused_parameters,
    )


def without_sync(model: nn.Module) -> AbstractContextManager[None]:
    assert isinstance(model, DistributedDataParallel)
    return model.no_sync()


@contextmanager
def no_comm(model: nn.Module) -> Iterator[None]:
    assert isinstance(model, DistributedDataParallel)
    # a pass without sync broadcasts buffers if the one before had sync, and then the next one does not
    broadcasts = model.require_forward_param_sync
    model.require_forward_param_sync = False
    try:
        with model.no_sync():
            yield
    finally:
        model.require_forward_param_sync = broadcasts


def unwrap(model: nn.Module) -> nn.Module:
    assert isinstance(model, DistributedDataParallel)
    return model.module
