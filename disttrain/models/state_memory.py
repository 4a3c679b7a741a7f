"""Bytes of weights, gradients and optimizer state on one device, by strategy, without torch.

With P parameters of b bytes, an optimizer with m moments per parameter, and one copy of the state spread over
s ranks, a device holds P b (2 + m) / s bytes from step to step (Rajbhandari et al. 2020, arXiv 1910.02054,
section 3; b = 4 and AdamW's m = 2 give 16 bytes per parameter). Activations are not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

MOMENTS = {"adamw": 2, "sgd": 1}
"""Tensors of the parameter's shape and dtype that an optimizer keeps; SGD without momentum keeps none."""


@dataclass(frozen=True)
class ModelSize:
    """Numbers of parameters of a model, each counted once."""

    parameters: int
    trained: int
    """Those with a gradient."""
    largest_block: int = 0
    """Parameters of the largest block; 0 without blocks: a sharded model is then gathered as a whole."""
    outside_blocks: int = 0
    """Parameters in no block, such as an embedding."""
    parameter_bytes: int = 4
    """Bytes of a parameter, and of its gradient and of each moment."""


@dataclass(frozen=True)
class StateMemory:
    """Bytes on one device."""

    parameters: int
    gradients: int
    optimizer: int
    buckets: int = 0
    """Copies of gradients in the buckets of DDP."""
    communication_state: int = 0
    """State of a scheme of gradient communication: errors, and factors of `powersgd`."""
    gathered: int = 0
    """Most that a sharded model gathers at a time: weights and gradients."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.communication

    @property
    def communication(self) -> int:
        """Bytes that exist because gradients or parameters travel between ranks."""
        return self.buckets + self.communication_state + self.gathered


def moments(optimizer: str, momentum: float) -> int:
    """Moments of `optim.name` per parameter."""
    return 0 if optimizer == "sgd" and not momentum else MOMENTS[optimizer]


def replicated_memory(
    size: ModelSize, moments: int, bucket_copy: bool = False, communication_state: int = 0
) -> StateMemory:
    """State of a device that holds the whole model: `single`, `dp` and `ddp`.

    `bucket_copy`: gradients exist a second time in the buckets of DDP, without `gradient_as_bucket_view` or
    with accumulation.
    """
    trained = size.trained * size.parameter_bytes
    return StateMemory(
        parameters=size.parameters * size.parameter_bytes,
        gradients=trained,
        optimizer=moments * trained,
        buckets=trained if bucket_copy else 0,
        communication_state=communication_state,
    )


def sharded_memory(
    size: ModelSize,
    moments: int,
    ranks: int,
    gathered_bytes: int | None = None,
    reshard: bool = True,
    whole_gradients: bool = False,
    offload: bool = False,
    forward_prefetch: int = 0,
    backward_prefetch: int = 1,
) -> StateMemory:
    """State of a device with 1/`ranks` of the model: `fsdp` over all ranks, `hsdp` over those of a node.

    `gathered_bytes` are the bytes of a gathered parameter (None: as stored). With `reshard`, the parameters
    outside of the blocks stay gathered, and so do the block that computes and those that are gathered ahead:
    `backward_prefetch` beside a gradient, or `forward_prefetch` without one. Without `reshard`, all blocks
    stay gathered until their backward pass. The gradient of one block and of the parameters outside exists in
    full until it is reduced. `whole_gradients`: those of all blocks exist in full between micro-steps
    (`accumulation: no_sync`). On one rank, `fully_shard` copies the parameters that it would gather.
    `offload`: the state is in host memory, and the shards of one group's parameters and gradients are on the
    device while they are copied: those of a block, or of the parameters outside of the blocks where they are
    more.
    """
    trained = _share(size.trained, ranks) * size.parameter_bytes
    unit = size.largest_block or size.parameters
    forward, backward = (
        min(size.parameters, size.outside_blocks + (1 + ahead) * unit) if reshard else size.parameters
        for ahead in (forward_prefetch, backward_prefetch)
    )
    at_once = max(forward, backward + min(size.trained, size.outside_blocks + unit))
    width = size.parameter_bytes if gathered_bytes is None else gathered_bytes
    gathered = at_once * width
    whole = size.trained * size.parameter_bytes if whole_gradients else 0
    if offload:
        copied = 2 * _share(max(unit, size.outside_blocks), ranks) * size.parameter_bytes
        return StateMemory(parameters=0, gradients=whole, optimizer=0, gathered=gathered + copied)
    return StateMemory(
        parameters=_share(size.parameters, ranks) * size.parameter_bytes,
        gradients=max(trained, whole),
        optimizer=moments * trained,
        gathered=gathered,
    )


def _share(count: int, ranks: int) -> int:
    return -(-count // ranks)
