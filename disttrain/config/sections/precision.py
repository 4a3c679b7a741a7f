"""Section `precision`: dtype of the compute, and steps whose gradients are not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import PositiveInt

from disttrain.config.sections.base import KeyedIfSet, Section


class PrecisionScheme(NamedTuple):
    """A precision of matrix products and convolutions."""

    autocast: str | None = None
    """Torch's dtype under autocast; None: float32 without autocast."""
    loss_scale: bool = False
    """Whether gradients need a dynamic loss scale."""
    capability: tuple[int, int] = (0, 0)
    """Lowest CUDA compute capability with hardware for it."""


PRECISIONS = {
    "fp32": PrecisionScheme(),
    "tf32": PrecisionScheme(capability=(8, 0)),
    "bf16": PrecisionScheme("bfloat16", capability=(8, 0)),
    "fp16": PrecisionScheme("float16", loss_scale=True, capability=(5, 3)),
}
"""By the names that `precision.dtype` takes beside `auto`."""

if TYPE_CHECKING:
    _Name = str
else:
    _Name = Literal[("auto", *PRECISIONS)]


class PrecisionConfig(Section):
    """Dtype of the compute, and steps whose gradients are not finite."""

    dtype: KeyedIfSet[_Name] = "fp32"
    """Dtype of matrix products and convolutions; parameters and optimizer state stay in float32. `auto`: bf16
    where the device computes it in hardware, else fp32; the log says which and why. `tf32`: float32 with TF32
    on a GPU. `bf16`, `fp16`: autocast; `fp16` with dynamic loss scaling."""
    on_non_finite: KeyedIfSet[Literal["skip", "stop", "ignore"]] = "skip"
    """A step whose gradients contain NaN or infinity. `skip`: leave the parameters unchanged, count the step
    and go on. `stop`: skip it and end the run with cause `non_finite`. `ignore`: no check and, without
    `optim.grad_clip`, no gradient norm."""
    max_skipped: KeyedIfSet[PositiveInt] = 20
    """Skipped steps in a row after which `skip` ends the run with cause `non_finite`."""
