"""Section `parallel`: the strategy, one section of options for each, and how gradients travel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import Section


class GradientCommunicationConfig(Section):
    """How the gradients of `strategy` ddp travel."""

    scheme: str = "none"
    """`none`: one all-reduce of each bucket, in the type of the gradients. `fp16`, `bf16`, `powersgd`,
    `topk`, `randomk`, `hierarchical`, `local_sgd`, or `package.module:name`: see
    [communication.md](communication.md#fewer-bytes-for-gradients)."""
    options: dict[str, Any] = {}  # noqa: RUF012 -- pydantic copies it
    """Keyword arguments of a scheme of another package."""
    warmup_steps: NonNegativeInt = 0
    """First steps of the run in which gradients travel as by `none`."""
    rank: PositiveInt = 4
    """Rank of the factors of `powersgd`."""
    warm_start: bool = True
    """Start the factors of `powersgd` from those of the last step, not from random ones."""
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the gradients that `topk` and `randomk` send."""
    error_feedback: bool = True
    """Add the gradients that `topk` and `randomk` did not send to those of the next step."""
    average_every: PositiveInt = 8
    """Steps between averages of the parameters by `local_sgd`."""


class DDPConfig(Section):
    """Options of DistributedDataParallel."""

    bucket_mb: PositiveFloat | None = None
    """Gradient bucket size in MiB; null leaves PyTorch's own, 25 MiB after a first bucket of 1 MiB."""
    first_bucket_mb: PositiveFloat | None = None
    """Size of the bucket that is reduced first, in MiB: a small one lets communication begin early. null: as
    `bucket_mb`, or 1 MiB if both are null."""
    gradient_as_bucket_view: bool = True
    """Let gradients live inside the buckets, so that no copy of them exists after the backward pass. The peak
    of a step falls if the gradients need more memory than the activations; with accumulation the copy
    stays."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Look for parameters without a gradient (costs a walk over the graph in each step)."""
    broadcast_buffers: bool = True
    """Give every rank the buffers of rank 0, such as running statistics of batch norm, before each forward
    pass. Without it they differ by rank; a validation and a checkpoint take those of rank 0."""
    sync_batch_norm: bool = False
    """Compute each batch norm over the samples of all ranks. A group norm needs no communication for this:
    `model.transforms=[group_norm]`."""


class PipelineConfig(Section):
    """Options of pipeline parallelism. The micro-batches of a step are those of the accumulation."""

    stages: Annotated[int, Field(ge=2)] = 2
    """Stages that the layers are split into. Each stage has ranks / `stages` replicas."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """Order of the passes: `gpipe` runs all forward passes first; `1f1b` alternates, so that a stage keeps
    the activations of at most `stages` micro-batches."""


class FSDPConfig(Section):
    """Options of `fully_shard`, in both strategies that shard."""

    reshard_after_forward: bool = True
    """Free the gathered parameters of a block after its forward pass, and gather them again for its backward
    pass. False keeps them: one all-gather per block less, and the memory of all parameters."""
    forward_prefetch: NonNegativeInt = 0
    """Blocks whose parameters are gathered ahead in the forward pass. 0: the host issues each all-gather when
    it reaches the block, which on a GPU overlaps with the block before."""
    backward_prefetch: PositiveInt | None = None
    """Blocks whose parameters are gathered ahead in the backward pass; null is PyTorch's one."""
    accumulation: Literal["reduce_scatter", "no_sync"] = "reduce_scatter"
    """Gradients of all micro-steps but the last: `reduce_scatter` reduces each within the shard, and keeps a
    shard of their sum. `no_sync` sends nothing, and keeps whole gradients."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype in which gradients travel and are summed. Parameters travel in the dtype of autocast
    (`precision.dtype` bf16 or fp16), else in their own."""
    meta_device: bool = True
    """Build the model in host memory of rank 0 alone, which sends every rank its shard. False builds it in
    host memory of every rank."""
    cpu_offload: bool = False
    """Keep each rank's shard of parameters, gradients and optimizer state in pinned host memory. The CPU
    updates the parameters. Needs a GPU; see [memory.md](memory.md)."""


class HSDPConfig(Section):
    """Layout of `strategy` hsdp."""

    shard_size: PositiveInt | None = None
    """Ranks that share one copy of the parameters; null: `resources.gpus_per_node`."""


class ParallelConfig(Section):
    """How the ranks work together."""

    strategy: str = "auto"
    """`single`: one rank. `dp`: one process, and DataParallel over its `resources.gpus_per_node` GPUs, else
    `single`. `ddp`: all ranks hold the model. `fsdp`: all ranks share one copy of the model, sharded by
    block. `hsdp`: ranks of a node share one copy, and every node holds one. `pipeline`: each rank holds
    some of the layers. `auto`: single on one rank; on more, the first of ddp, hsdp and fsdp whose estimated
    memory fits the device. `package.module:name`: one of another package, with its `options`. The log and
    `strategy_reason` hold the arithmetic."""
    options: dict[str, Any] = {}  # noqa: RUF012 -- pydantic copies it
    """Keyword arguments of a strategy of another package."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend of the collectives: `auto` is NCCL where every rank has a GPU of its own, else gloo."""
    ddp: DDPConfig = DDPConfig()
    """Options of `strategy` ddp."""
    fsdp: FSDPConfig = FSDPConfig()
    """Options of `strategy` fsdp and hsdp."""
    hsdp: HSDPConfig = HSDPConfig()
    """Options of `strategy` hsdp alone."""
    pipeline: PipelineConfig = PipelineConfig()
    """Options of `strategy` pipeline."""
    gradient_communication: GradientCommunicationConfig = GradientCommunicationConfig()
