"""Section `parallel`: the strategy, and one section of options for each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from disttrain.config.sections.base import KEYED_IF_SET, Section
from disttrain.config.sections.gradient_communication import GradientCommunicationConfig


class DDPConfig(Section):
    """Options of DistributedDataParallel."""

    bucket_mb: PositiveFloat | None = None
    """Gradient bucket size in MiB; null leaves PyTorch's own, 25 MiB after a first bucket of 1 MiB."""
    first_bucket_mb: Annotated[PositiveFloat | None, Field(json_schema_extra=KEYED_IF_SET)] = None
    """Size of the bucket that is reduced first, in MiB: a small one lets communication begin early. null: as
    `bucket_mb`, or 1 MiB if both are null."""
    gradient_as_bucket_view: bool = True
    """Let gradients live inside the buckets, which saves one copy of them."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Look for parameters without a gradient (costs a walk over the graph in each step)."""
    broadcast_buffers: Annotated[bool, Field(json_schema_extra=KEYED_IF_SET)] = True
    """Give every rank the buffers of rank 0, such as running statistics of batch norm, before each forward
    pass. Without it they differ by rank; a validation and a checkpoint take those of rank 0."""
    sync_batch_norm: Annotated[bool, Field(json_schema_extra=KEYED_IF_SET)] = False
    """Compute each batch norm over the samples of all ranks. A group norm needs no communication for this:
    `model.transforms=[disttrain.transforms.group_norm:group_norm]`."""


class PipelineConfig(Section):
    """Options of pipeline parallelism. The micro-batches of a step are those of the accumulation."""

    stages: Annotated[int, Field(ge=2, json_schema_extra=KEYED_IF_SET)] = 2
    """Stages that the layers are split into. Each stage has ranks / `stages` replicas."""
    schedule: Annotated[Literal["gpipe", "1f1b"], Field(json_schema_extra=KEYED_IF_SET)] = "1f1b"
    """Order of the passes: `gpipe` runs all forward passes first; `1f1b` alternates, so that a stage keeps
    the activations of at most `stages` micro-batches."""


class ParallelConfig(Section):
    """How the ranks work together."""

    strategy: Literal["auto", "single", "ddp", "pipeline"] = "auto"
    """`auto` is single on one rank and ddp on more, and says why in the log."""
    ddp: DDPConfig = DDPConfig()
    """Options of `strategy` ddp."""
    pipeline: PipelineConfig = PipelineConfig()
    """Options of `strategy` pipeline."""
    gradient_communication: GradientCommunicationConfig = GradientCommunicationConfig()
