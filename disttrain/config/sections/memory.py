"""Section `memory`: what trades time for memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from disttrain.config.sections.base import KEYED_IF_SET, Section


class MemoryConfig(Section):
    """Options that trade time for memory; see [memory.md](memory.md)."""

    activation_checkpointing: Annotated[
        Literal["none", "full", "every-n", "selective"], Field(json_schema_extra=KEYED_IF_SET)
    ] = "none"
    """Recompute activations in the backward pass: of every block (`full`), of every n-th block (`every-n`),
    or all but the outputs of matrix products, convolutions and attention (`selective`)."""
    every_blocks: Annotated[PositiveInt | None, Field(json_schema_extra=KEYED_IF_SET)] = None
    """Of this many successive blocks, `every-n` recomputes one; required by that mode and refused with any
    other."""
    offload_activations: Annotated[bool, Field(json_schema_extra=KEYED_IF_SET)] = False
    """Keep activations in pinned host memory until the backward pass; with `activation_checkpointing`, only
    the inputs of blocks are left to copy. Needs a GPU."""
    loss_chunk_tokens: Annotated[PositiveInt | None, Field(json_schema_extra=KEYED_IF_SET)] = None
    """Compute the loss of a GPT for this many tokens at a time, so that the logits of all tokens never exist;
    null: all at once. 1024 or more keep a GPU busy."""

    @property
    def loss_in_model(self) -> bool:
        """Whether the model computes the loss."""
        return self.loss_chunk_tokens is not None
