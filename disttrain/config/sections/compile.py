"""Section `compile`: compilation of the model with `torch.compile`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from disttrain.config.sections.base import KEYED_IF_SET, Section


class CompileConfig(Section):
    """Compilation with `torch.compile`, in a pass before the first step."""

    scope: Annotated[Literal["none", "blocks", "model"], Field(json_schema_extra=KEYED_IF_SET)] = "none"
    """`blocks`: each block of the model by itself; blocks of equal shapes are compiled once. `model`: the
    whole model as one graph, which takes longer to compile."""
    backend: Annotated[Literal["inductor", "aot_eager", "eager"], Field(json_schema_extra=KEYED_IF_SET)] = (
        "inductor"
    )
    """`inductor` generates kernels; the others capture the graph and run PyTorch's own kernels, to find the
    cause of a problem."""
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
        Field(json_schema_extra=KEYED_IF_SET),
    ] = "default"
    """Mode of inductor; `reduce-overhead` and `max-autotune` use CUDA graphs."""
    fullgraph: Annotated[bool, Field(json_schema_extra=KEYED_IF_SET)] = False
    """Refuse a model that does not become one graph per block (or model)."""
    dynamic: Annotated[bool | None, Field(json_schema_extra=KEYED_IF_SET)] = False
    """Whether one graph serves all shapes; false: a graph for each shape; null: PyTorch decides."""

    @property
    def used_backend(self) -> str | None:
        """The backend; None where nothing is compiled."""
        return None if self.scope == "none" else self.backend
