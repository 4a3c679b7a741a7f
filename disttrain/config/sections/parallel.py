"""Section `parallel`: the strategy, and one section of options for each."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from disttrain.config.sections.base import Section


class DDPConfig(Section):
    """Options of DistributedDataParallel."""

    bucket_mb: PositiveFloat | None = None
    """Gradient bucket size in MiB; null leaves PyTorch's own, 25 MiB after a first bucket of 1 MiB."""
    gradient_as_bucket_view: bool = True
    """Let gradients live inside the buckets, which saves one copy of them."""
    static_graph: bool = False
    """Promise that every step uses the same parameters."""
    find_unused_parameters: bool = False
    """Look for parameters without a gradient (costs a walk over the graph in each step)."""


class ParallelConfig(Section):
    """How the ranks work together."""

    strategy: Literal["auto", "single", "ddp"] = "auto"
    """`auto` is single on one rank and ddp on more, and says why in the log."""
    ddp: DDPConfig = DDPConfig()
    """Options of `strategy` ddp."""
