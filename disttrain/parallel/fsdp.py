"""`fully_shard` by block: ranks share one copy of parameters, gradients and optimizer state.

Parameters of a block are gathered before its forward and its backward pass, and gradients are averaged by a
reduce-scatter after its backward pass. Transforms come first: an activation checkpoint within the sharded
block recomputes from gathered parameters, and a compiled block contains no collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from disttrain.config.sections.parallel import FSDPConfig, ParallelConfig
from disttrain.models.hooks import blocks_of
from disttrain.parallel.base import Mesh, Strategy, Timed
from disttrain.parallel.broadcast import broadcast_buffers, build_on_rank_0, fill, named_tensors
from disttrain.parallel.fully_shard_waits import RETURNED_EARLY, comm_method, time_waits
from disttrain.runtime.fully_shard_hooks import (
    Dimension,
    compute_device,
    groups_of_mesh,
    param_groups,
    sharded_modules,
)
from disttrain.runtime.process_group import World, ensure_group, set_timeouts

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class FSDP(Strategy):
    """`torch.distributed.fsdp.fully_shard` with the options of `parallel.fsdp`."""

    gathers_parameters = True

    def __init__(self, options: FSDPConfig) -> None:
        self.options = options
        self._world: World | None = None
        self._buffers_are_equal = False
        self._timed: Timed = lambda dimension: nullcontext()
        self._exposed_comm_reason: str | None = None

    def mesh(self, world: World) -> Mesh:
        return Mesh(rank=world.rank, shard=world.size)

    def build(self, make: Callable[[], nn.Module], world: World) -> nn.Module:
        """The model in host memory of rank 0, with `meta_device` false of every rank."""
        return build_on_rank_0(make, world) if self.options.meta_device else make()

    def apply(self, model: nn.Module, mesh: Mesh, world: World) -> nn.Module:
        ensure_group(world)
        self._world = world
        sizes = {"replicate": mesh.replicate} if mesh.replicate > 1 else {}
        sizes["shard"] = mesh.shard
        device_mesh = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        set_timeouts(device_mesh, world)
        policies: dict[str, Any] = {
            # Parameters travel in the dtype of autocast, which also decides the dtype of each operator, as in
            # other strategies; so inputs of blocks are not cast.
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=self.autocast_dtype,
                reduce_dtype=_DTYPES[self.options.reduce_dtype],
                cast_forward_inputs=False,
            ),
            "offload_policy": offload_policy(self.options),
        }
        initial = named_tensors(model)
        reshard = self.options.reshard_after_forward
        blocks = [
            fully_shard(block, mesh=device_mesh, reshard_after_forward=reshard, **policies)
            for block in blocks_of(model).values()
        ]
        fully_shard(model, mesh=device_mesh, **policies)
        set_prefetch(blocks, self.options.forward_prefetch, self.options.backward_prefetch)
        if any(tensor.is_meta for tensor in initial.values()):
            model.to_empty(device="cpu" if self.options.cpu_offload else world.device)
            for module in model.modules():
                buffers = {name: value for name, value in module._buffers.items() if value is not None}
                module._buffers.update({name: value.to(world.device) for name, value in buffers.items()})
        fill(model, initial, world)
        self.comm_method, self.comm_reason = comm_method(model, world)
        return model

    @contextmanager
    def micro_step(self, model: nn.Module, last: bool) -> Iterator[None]:
        assert isinstance(model, FSDPModule)
        if not self._buffers_are_equal and self._world is not None:
            with self._timed(None):
                broadcast_buffers(model, self._world)
        self._buffers_are_equal = not last  # once per optimizer step, as DDP does
        if self.options.accumulation == "no_sync":
            model.set_requires_gradient_sync(last)
        else:
            model.set_requires_all_reduce(last)
        yield

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        try:
            with torch.no_grad():  # parameters gathered in inference mode could not be trained
                yield
        finally:
            assert isinstance(model, FSDPModule)
            model.reset_iter_state()  # the last forward pass leaves blocks gathered and recorded

    def drop_gradients(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().drop_gradients(model, optimizer)
        self._buffers_are_equal = False
        for module in sharded_modules(model):
            for group in param_groups(module):  # FSDP2 keeps these until the last micro-step
                group._partial_reduce_output = None
                for parameter in group.fsdp_params:
                    parameter.unsharded_accumulated_grad = None
                    if hasattr(parameter, "_unsharded_param"):
                        parameter._unsharded_param.grad = None

    def grad_norm(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> Tensor:
        """L2 norm of the gradients; replicas have equal ones."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        own = [grad.to_local() if isinstance(grad, DTensor) else grad for grad in gradients]
        squared = nn.utils.get_total_norm(own).square().to(compute_device(model))
        groups = groups_of_mesh(model)
        with self._timed("shard" if groups else None):
            dist.all_reduce(squared, group=groups.get("shard"))
        return squared.sqrt()

    def time_communication(self, model: nn.Module, timed: Timed) -> None:
        self._timed = timed
        if self.comm_method is not None:
            time_waits(model, timed, self._returned_early)

    def exposed_comm_reason(self) -> str | None:
        reason, self._exposed_comm_reason = self._exposed_comm_reason, None
        return reason

    def _returned_early(self) -> None:
        self._exposed_comm_reason = RETURNED_EARLY

    def comm_groups(self, model: nn.Module) -> Mapping[Dimension, dist.ProcessGroup]:
        return groups_of_mesh(model)


def offload_policy(options: FSDPConfig) -> OffloadPolicy:
    """The policy for the shards of a rank that computes on a GPU."""
    return CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()


def set_prefetch(blocks: list[FSDPModule], forward: int, backward: int | None) -> None:
    """Gather the parameters of so many blocks ahead, while a block computes; None leaves it to PyTorch."""
    for at, block in enumerate(blocks):
        if forward:
            block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + forward])
        if backward is not None:
            block.set_modules_to_backward_prefetch(blocks[max(0, at - backward) : at][::-1])


def build(config: ParallelConfig) -> FSDP:
    return FSDP(config.fsdp)
