"""Section `train`: length of training, batch sizes, intervals."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section


class TrainConfig(Section):
    """Length of training, batch sizes, and intervals of validation and logging."""

    steps: PositiveInt | None = None
    """Optimizer steps. Give either this or `epochs`."""
    epochs: PositiveFloat | None = None
    """Passes over the training samples, rounded up to whole steps."""
    local_batch_size: PositiveInt | Literal["auto"] | None = None
    """Samples per rank and micro-step. Give this, `global_batch_size`, or both. `auto`: the fastest size that
    fits into memory, found before the first step; see [memory.md](memory.md#automatic-batch-size)."""
    global_batch_size: PositiveInt | None = None
    """Samples per optimizer step over all ranks; sets the accumulation if `local_batch_size` is given too."""
    accumulation: PositiveInt | None = None
    """Micro-steps per optimizer step, in place of one of the batch sizes."""
    seed: NonNegativeInt = 0
    """Seed of the weights, the order of samples and dropout."""
    eval_every: NonNegativeInt = 0
    """Steps between validations; 0 validates once, at the end."""
    eval_samples: NonNegativeInt = 0
    """Validation samples used each time; 0 uses all of them."""
    log_every: NotInKey[PositiveInt] = 10
    """Steps between all-reduces of the loss for the global loss curve. Where they last less than a second, a
    multiple of them, up to 100 steps."""
    gc_every: NonNegativeInt = 0
    """Steps between garbage collections of Python, in the same steps on all ranks; 0: each rank collects when
    Python's own counters say so."""
    attention: Literal["auto", "cudnn", "flash", "efficient", "math"] = "auto"
    """Kernel of `scaled_dot_product_attention`; `auto`: PyTorch's choice for each call, which is cuDNN first
    on Hopper. Another value allows this kernel alone; see [speed.md](speed.md#attention)."""
