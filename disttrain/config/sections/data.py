"""Section `data`: the data source and its loader."""

from __future__ import annotations

from pydantic import ConfigDict, NonNegativeInt, PositiveInt

from disttrain.config.sections.base import Section


class DataConfig(Section):
    """The data source. Keys not listed here are keyword arguments of its `build`."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    kind: str = "text"
    """A module of `disttrain.data` (text, tokens, images, digits, synthetic), or
    `package.module:callable`."""
    workers: NonNegativeInt = 0
    """Loader processes per rank; 0 loads in the rank itself."""
    prefetch: PositiveInt = 2
    """Batches prefetched by each loader process; used when `workers` > 0."""
