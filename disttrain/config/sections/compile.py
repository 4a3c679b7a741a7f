"""Section `compile`: compilation of the model with `torch.compile`."""

from __future__ import annotations

from typing import Literal

from disttrain.config.sections.base import KeyedIfSet, Section

KNOWN_BACKENDS = ("inductor", "aot_eager", "eager")
"""Those that every PyTorch has, so that nothing needs to ask it."""


class CompileConfig(Section):
    """Compilation with `torch.compile`, in a pass before the first step."""

    scope: KeyedIfSet[Literal["none", "blocks", "model"]] = "none"
    """`blocks`: each block of the model by itself; blocks of equal shapes are compiled once. `model`: the
    whole model as one graph, which takes longer to compile."""
    backend: KeyedIfSet[str] = "inductor"
    """A backend that `torch.compiler.list_backends` names. `inductor` generates kernels; `aot_eager` and
    `eager` capture the graph and run PyTorch's own kernels, to find the cause of a problem."""
    mode: KeyedIfSet[Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]] = (
        "default"
    )
    """Mode of inductor; `reduce-overhead` and `max-autotune` use CUDA graphs."""
    fullgraph: KeyedIfSet[bool] = False
    """Refuse a model that does not become one graph per block (or model)."""
    dynamic: KeyedIfSet[bool | None] = False
    """Whether one graph serves all shapes; false: a graph for each shape; null: PyTorch decides."""

    @property
    def used_backend(self) -> str | None:
        """The backend; None where nothing is compiled."""
        return None if self.scope == "none" else self.backend
