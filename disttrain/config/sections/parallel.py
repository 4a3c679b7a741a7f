"""Section `parallel`: the strategy, one section of options for each, and how gradients travel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import Section


class GradientCommunicationConfig(Section):
    """How the gradients of `strategy` ddp travel."""

    scheme: str = "none"
    """`none`: an all-reduce of each bucket. `fp16`, `bf16`, `powersgd`, `topk`, `randomk`, `hierarchical`,
    `local_sgd`, or `package.module:name`."""
    options: dict[str, Any] = {}  # noqa: RUF012 -- pydantic copies it
    """Keyword arguments of a scheme of another package."""
    warmup_steps: NonNegativeInt = 0
    """First steps that communicate as with `none`."""
    rank: PositiveInt = 4
    """Rank of the factors of `powersgd`."""
    warm_start: bool = True
    """Start the factors of `powersgd` from those of the last step."""
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the gradients that `topk` and `randomk` send."""
    error_feedback: bool = True
    """Add the gradients that `topk` and `randomk` did not send to the next step's."""
    average_every: PositiveInt = 8
    """Steps between averages of the parameters by `local_sgd`."""


class DDPConfig(Section):
    """Options of DistributedDataParallel."""

    bucket_mb: PositiveFloat | None = None
    """Size of gradient buckets in MiB; null: PyTorch's 25."""
    first_bucket_mb: PositiveFloat | None = None
    """Size of the bucket reduced first, in MiB; null: as `bucket_mb`, else 1."""
    gradient_as_bucket_view: bool = True
    """Keep gradients in the buckets, which saves a copy of them unless the step accumulates."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Find parameters without a gradient, by a walk over the graph in each step."""
    broadcast_buffers: bool = True
    """Send buffers of rank 0, such as statistics of batch norm, before each forward pass."""
    sync_batch_norm: bool = False
    """Compute batch norms over the samples of all ranks."""


class PipelineConfig(Section):
    """Options of pipeline parallelism. The micro-batches of a step are those of the accumulation."""

    stages: Annotated[int, Field(ge=2)] = 2
    """Stages of layers; each has ranks / `stages` replicas."""
    schedule: Literal["gpipe", "1f1b"] = "1f1b"
    """`gpipe`: all forward passes first. `1f1b`: in turns, with activations of at most `stages`
    micro-batches."""


class FSDPConfig(Section):
    """Options of `fully_shard`, in both strategies that shard."""

    reshard_after_forward: bool = True
    """Free gathered parameters after the forward pass, and gather them again for the backward pass."""
    forward_prefetch: NonNegativeInt = 0
    """Blocks gathered ahead in the forward pass."""
    backward_prefetch: PositiveInt | None = None
    """Blocks gathered ahead in the backward pass; null: PyTorch's 1."""
    accumulation: Literal["reduce_scatter", "no_sync"] = "reduce_scatter"
    """`reduce_scatter` in each micro-step; `no_sync`: in the last one alone, with whole gradients until
    then."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype in which gradients travel and are summed."""
    meta_device: bool = True
    """Build the model on rank 0 alone, which sends each rank its shard."""
    cpu_offload: bool = False
    """Keep shards in pinned host memory, where the CPU updates them; needs a GPU."""


class HSDPConfig(Section):
    """Layout of `strategy` hsdp."""

    shard_size: PositiveInt | None = None
    """Ranks that share one copy; null: `resources.gpus_per_node`."""


class ParallelConfig(Section):
    """How the ranks work together."""

    strategy: str = "auto"
    """`single`, `dp`, `ddp`, `fsdp`, `hsdp`, `pipeline`, or `package.module:name`. `auto`: single on one
    rank, else the first of ddp, hsdp and fsdp whose estimated memory fits."""
    options: dict[str, Any] = {}  # noqa: RUF012 -- pydantic copies it
    """Keyword arguments of a strategy of another package."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """`auto`: NCCL where every rank has a GPU of its own, else gloo."""
    ddp: DDPConfig = DDPConfig()
    """Options of `strategy` ddp."""
    fsdp: FSDPConfig = FSDPConfig()
    """Options of `strategy` fsdp and hsdp."""
    hsdp: HSDPConfig = HSDPConfig()
    """Options of `strategy` hsdp alone."""
    pipeline: PipelineConfig = PipelineConfig()
    """Options of `strategy` pipeline."""
    gradient_communication: GradientCommunicationConfig = GradientCommunicationConfig()
