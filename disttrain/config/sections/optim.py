"""Section `optim`: the optimizer and its learning-rate schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from disttrain.config.sections.base import Section

_Decay = Annotated[float, Field(ge=0, lt=1)]


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
    """Fused kernels; null: where the device has them."""
    grad_clip: PositiveFloat | None = None
    """Largest global gradient norm; null: no clipping."""
    schedule: str = "constant"
    """After the warm-up: `constant`, `linear`, `cosine`, `cosine_restarts`, `step`, or
    `package.module:name`."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    final_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Final learning rate / peak, of `linear`, `cosine` and each cycle of `cosine_restarts`."""
    restart_every: PositiveInt | None = None
    """Steps of the first cycle of `cosine_restarts`."""
    restart_factor: PositiveInt = 1
    """Length of a cycle / length of the one before."""
    step_every: PositiveInt | None = None
    """Steps between drops of the schedule `step`."""
    step_factor: PositiveFloat = 0.1
    """Factor of the learning rate at each drop."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Scale `lr` by global batch size / `lr_base_batch`, or by the square root of it."""
    lr_base_batch: PositiveInt | None = None
    """Global batch size for which `lr` was tuned."""
