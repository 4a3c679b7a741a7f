"""Sections `train` and `optim`: length of training, batch sizes, intervals; optimizer and schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section

_Decay = Annotated[float, Field(ge=0, lt=1)]


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


class OptimConfig(Section):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or SGD with momentum."""
    lr: PositiveFloat = 1e-3
    """Peak learning rate, before `lr_scaling`."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of matrices and kernels; biases and norms have none."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    """Exponential decay rates of AdamW."""
    momentum: NonNegativeFloat = 0.9
    """Momentum of SGD."""
    fused: bool | None = None
    """Fused optimizer kernels; null uses them where the device supports them."""
    grad_clip: PositiveFloat | None = None
    """Global gradient norm above which gradients are clipped; null does not clip."""
    schedule: str = "constant"
    """Learning-rate schedule after the warm-up: `constant`, `linear`, `cosine`, `cosine_restarts`, `step`, or
    `package.module:name`."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up before the schedule starts."""
    final_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Final learning rate of `cosine` and `linear`, and of each cycle of `cosine_restarts`, as a fraction of
    the peak."""
    restart_every: PositiveInt | None = None
    """Steps of the first cycle of `cosine_restarts`; required by that schedule and refused with any other."""
    restart_factor: PositiveInt = 1
    """Length of each cycle of `cosine_restarts` / length of the one before."""
    step_every: PositiveInt | None = None
    """Steps between drops of the `step` schedule; required by that schedule and refused with any other."""
    step_factor: PositiveFloat = 0.1
    """Factor of the learning rate at each drop of the `step` schedule."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Scale `lr` by (global batch / `lr_base_batch`), or by its square root."""
    lr_base_batch: PositiveInt | None = None
    """Global batch size that `lr` was tuned for; required when `lr_scaling` is not `none`."""
