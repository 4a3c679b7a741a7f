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
    """Dtype of the compute, and gradients that are not finite."""

    dtype: Literal["auto", *PRECISIONS] = "fp32"  # type: ignore[valid-type]
    """Dtype of matrix products and convolutions; parameters stay in float32. `bf16` and `fp16` use autocast,
    `fp16` with loss scaling. `auto`: bf16 where the hardware has it, else fp32."""
    on_non_finite: Literal["skip", "stop", "ignore"] = "skip"
    """After gradients with NaN or infinity: `skip` the update, `stop` with cause `non_finite`, or `ignore`
    them without a check."""
    max_skipped: PositiveInt = 20
    """Skipped steps in a row after which `skip` ends the run."""


class MemoryConfig(Section):
    """Options that trade time for memory."""

    activation_checkpointing: Literal["none", "full", "every-n", "selective"] = "none"
    """Recompute activations in the backward pass: of all blocks (`full`), of one in `every_blocks`
    (`every-n`), or all but those of matrix products, convolutions and attention (`selective`)."""
    every_blocks: PositiveInt | None = None
    """Blocks of which `every-n` recomputes one."""
    offload_activations: bool = False
    """Keep activations in pinned host memory until the backward pass; needs a GPU."""
    loss_chunk_tokens: PositiveInt | None = None
    """Tokens of a GPT whose logits exist at a time, during the loss; null: all."""

    @property
    def loss_in_model(self) -> bool:
        """Whether the model computes the loss."""
        return self.loss_chunk_tokens is not None


KNOWN_BACKENDS = ("inductor", "aot_eager", "eager")
"""Those that every PyTorch has, so that nothing needs to ask it."""


class CompileConfig(Section):
    """Compilation with `torch.compile`, in a pass before the first step."""

    scope: Literal["none", "blocks", "model"] = "none"
    """`blocks`: each block by itself. `model`: one graph, which takes longer to compile."""
    backend: str = "inductor"
    """Backend of `torch.compile`; `aot_eager` and `eager` help to find the cause of a problem."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """Mode of inductor; `reduce-overhead` and `max-autotune` use CUDA graphs."""
    fullgraph: bool = False
    """Refuse a model that does not become one graph per block or model."""
    dynamic: bool | None = False
    """One graph for all shapes; false: one for each shape; null: PyTorch decides."""

    @property
    def used_backend(self) -> str | None:
        """The backend; None where nothing is compiled."""
        return None if self.scope == "none" else self.backend
