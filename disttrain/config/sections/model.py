"""Sections `model` and `data`: the model and its transforms, the data source and its loader."""

from __future__ import annotations

from pydantic import NonNegativeInt, PositiveInt

from disttrain.config.sections.base import Section


class ModelConfig(Section, extra="allow"):
    """The model. Keys other than `kind` are keyword arguments of its `build`."""

    kind: str = "gpt"
    """`gpt`, `mlp`, `resnet`, `emulated`, `huggingface`, or `package.module:callable`."""
    transforms: tuple[str, ...] = ()
    """Changes of the model before the strategy, in this order: `channels_last`, `group_norm`, or
    `package.module:callable`."""


class DataConfig(Section, extra="allow"):
    """The data source. Keys not listed here are keyword arguments of its `build`."""

    kind: str = "text"
    """`text`, `tokens`, `images`, `digits`, `synthetic`, or `package.module:callable`."""
    workers: NonNegativeInt = 0
    """Loader processes of each rank; 0: the rank loads."""
    prefetch: PositiveInt = 2
    """Batches that each loader process prefetches."""
