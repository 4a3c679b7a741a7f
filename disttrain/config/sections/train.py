"""Section `train`: length of training, batch sizes, intervals."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section


class TrainConfig(Section):
    """Length of training, batch sizes, and intervals of validation and logging."""

    steps: PositiveInt | None = None
    """Optimizer steps; give these or `epochs`."""
    epochs: PositiveFloat | None = None
    """Passes over the training samples, rounded up to whole steps."""
    local_batch_size: PositiveInt | Literal["auto"] | None = None
    """Samples per rank and micro-step. `auto`: the fastest size that fits into memory."""
    global_batch_size: PositiveInt | None = None
    """Samples per optimizer step over all ranks; together with a local size it sets the accumulation."""
    accumulation: PositiveInt | None = None
    """Micro-steps per optimizer step, in place of one batch size."""
    seed: NonNegativeInt = 0
    """Seed of weights, order of samples and dropout."""
    eval_every: NonNegativeInt = 0
    """Steps between validations; 0: one, at the end."""
    eval_samples: NonNegativeInt = 0
    """Samples of a validation; 0: all."""
    log_every: NotInKey[PositiveInt] = 10
    """Steps between all-reduces of the loss; a multiple, up to 100, where they last less than a second."""
    gc_every: NonNegativeInt = 0
    """Steps between garbage collections, in the same steps on all ranks; 0: Python decides on each rank."""
    attention: Literal["auto", "cudnn", "flash", "efficient", "math"] = "auto"
    """Only kernel of `scaled_dot_product_attention`; `auto`: PyTorch chooses for each call."""
