"""Sections `model` and `data`: the model and its transforms, the data source and its loader."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt

from disttrain.config.sections.base import Section


class ModelConfig(Section, extra="allow"):
    """The model. Keys other than `kind` are keyword arguments of its `build`."""

    kind: str = "gpt"
    """A module of `disttrain.models` (gpt, mlp, resnet, emulated, huggingface), or
    `package.module:callable`."""
    transforms: tuple[str, ...] = ()
    """Functions from module to module, applied in this order before the strategy: a module of
    `disttrain.transforms` (channels_last, group_norm), or `package.module:callable`."""


class DataConfig(Section, extra="allow"):
    """The data source. Keys not listed here are keyword arguments of its `build`."""

    kind: str = "text"
    """A module of `disttrain.data` (text, tokens, images, digits, synthetic), or
    `package.module:callable`."""
    workers: NonNegativeInt = 0
    """Loader processes per rank; 0 loads in the rank itself."""
    prefetch: PositiveInt = 2
    """Batches prefetched by each loader process; used when `workers` > 0."""
