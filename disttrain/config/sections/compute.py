"""Sections `precision`, `memory` and `compile`: how a device computes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import PositiveInt

from disttrain.config.sections.base import Section


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


class PrecisionConfig(Section):
    """Dtype of the compute, and steps whose gradients are not finite."""

    dtype: Literal["auto", *PRECISIONS] = "fp32"  # type: ignore[valid-type]
    """Dtype of matrix products and convolutions; parameters and optimizer state stay in float32. `auto`: bf16
    where the device computes it in hardware, else fp32; the log says which and why. `tf32`: float32 with TF32
    on a GPU. `bf16`, `fp16`: autocast; `fp16` with dynamic loss scaling."""
    on_non_finite: Literal["skip", "stop", "ignore"] = "skip"
    """A step whose gradients contain NaN or infinity. `skip`: leave the parameters unchanged, count the step
    and go on. `stop`: skip it and end the run with cause `non_finite`. `ignore`: no check and, without
    `optim.grad_clip`, no gradient norm."""
    max_skipped: PositiveInt = 20
    """Skipped steps in a row after which `skip` ends the run with cause `non_finite`."""


class MemoryConfig(Section):
    """Options that trade time for memory; see [memory.md](memory.md)."""

    activation_checkpointing: Literal["none", "full", "every-n", "selective"] = "none"
    """Recompute activations in the backward pass: of every block (`full`), of every n-th block (`every-n`),
    or all but the outputs of matrix products, convolutions and attention (`selective`)."""
    every_blocks: PositiveInt | None = None
    """Of this many successive blocks, `every-n` recomputes one; required by that mode and refused with any
    other."""
    offload_activations: bool = False
    """Keep activations in pinned host memory until the backward pass; with `activation_checkpointing`, only
    the inputs of blocks are left to copy. Needs a GPU."""
    loss_chunk_tokens: PositiveInt | None = None
    """Compute the loss of a GPT for this many tokens at a time, so that the logits of all tokens never exist;
    null: all at once. 1024 or more keep a GPU busy."""

    @property
    def loss_in_model(self) -> bool:
        """Whether the model computes the loss."""
        return self.loss_chunk_tokens is not None


KNOWN_BACKENDS = ("inductor", "aot_eager", "eager")
"""Those that every PyTorch has, so that nothing needs to ask it."""


class CompileConfig(Section):
    """Compilation with `torch.compile`, in a pass before the first step."""

    scope: Literal["none", "blocks", "model"] = "none"
    """`blocks`: each block of the model by itself; blocks of equal shapes are compiled once. `model`: the
    whole model as one graph, which takes longer to compile."""
    backend: str = "inductor"
    """A backend that `torch.compiler.list_backends` names. `inductor` generates kernels; `aot_eager` and
    `eager` capture the graph and run PyTorch's own kernels, to find the cause of a problem."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """Mode of inductor; `reduce-overhead` and `max-autotune` use CUDA graphs."""
    fullgraph: bool = False
    """Refuse a model that does not become one graph per block (or model)."""
    dynamic: bool | None = False
    """Whether one graph serves all shapes; false: a graph for each shape; null: PyTorch decides."""

    @property
    def used_backend(self) -> str | None:
        """The backend; None where nothing is compiled."""
        return None if self.scope == "none" else self.backend
