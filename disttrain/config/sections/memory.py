"""Section `memory`: what trades time for memory."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from disttrain.config.sections.base import KeyedIfSet, Section


class MemoryConfig(Section):
    """Options that trade time for memory; see [memory.md](memory.md)."""

    activation_checkpointing: KeyedIfSet[Literal["none", "full", "every-n", "selective"]] = "none"
    """Recompute activations in the backward pass: of every block (`full`), of every n-th block (`every-n`),
    or all but the outputs of matrix products, convolutions and attention (`selective`)."""
    every_blocks: KeyedIfSet[PositiveInt | None] = None
    """Of this many successive blocks, `every-n` recomputes one; required by that mode and refused with any
    other."""
    offload_activations: KeyedIfSet[bool] = False
    """Keep activations in pinned host memory until the backward pass; with `activation_checkpointing`, only
    the inputs of blocks are left to copy. Needs a GPU."""
    loss_chunk_tokens: KeyedIfSet[PositiveInt | None] = None
    """Compute the loss of a GPT for this many tokens at a time, so that the logits of all tokens never exist;
    null: all at once. 1024 or more keep a GPU busy."""

    @property
    def loss_in_model(self) -> bool:
        """Whether the model computes the loss."""
        return self.loss_chunk_tokens is not None
