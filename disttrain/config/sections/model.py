"""Section `model`: the model and its transforms."""

from __future__ import annotations

from pydantic import ConfigDict

from disttrain.config.sections.base import KeyedIfSet, Section


class ModelConfig(Section):
    """The model. Keys other than `kind` are keyword arguments of its `build`."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    kind: str = "gpt"
    """A module of `disttrain.models` (gpt, mlp, resnet, emulated, huggingface), or
    `package.module:callable`."""
    transforms: KeyedIfSet[tuple[str, ...]] = ()
    """Functions from module to module, applied in this order before the strategy: a module of
    `disttrain.transforms` (channels_last, group_norm), or `package.module:callable`."""
