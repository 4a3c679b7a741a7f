"""Section `model`: the model and its transforms."""

from __future__ import annotations

import re

from pydantic import ConfigDict, field_validator

from disttrain.config.sections.base import KeyedIfSet, Section

_OWN_TRANSFORM = re.compile(r"disttrain\.transforms\.(\w+):(?:build|\1)")
"""The longer form of a built-in transform; its function once had the name of its module."""


class ModelConfig(Section):
    """The model. Keys other than `kind` are keyword arguments of its `build`."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    kind: str = "gpt"
    """A module of `disttrain.models` (gpt, mlp, resnet, emulated, huggingface), or
    `package.module:callable`."""
    transforms: KeyedIfSet[tuple[str, ...]] = ()
    """Functions from module to module, applied in this order before the strategy: a module of
    `disttrain.transforms` (channels_last, group_norm), or `package.module:callable`."""

    @field_validator("transforms")
    @classmethod
    def _by_short_name(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        """One name for each, which other keys are checked against."""
        found = [(name, _OWN_TRANSFORM.fullmatch(name)) for name in names]
        return tuple(match[1] if match else name for name, match in found)
