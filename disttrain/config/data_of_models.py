"""Samples of the built-in data sources, and the built-in models that take them."""

from __future__ import annotations

from disttrain.config.config_tree import Config
from disttrain.config.sections.data import DataConfig
from disttrain.errors import either

TOKENS, IMAGES, _VECTORS = "tokens", "images", "samples without three dimensions"
DATA_OF = {
    TOKENS: "data.kind=text, tokens or synthetic with data.task=language",
    IMAGES: "data.kind=digits or images, or synthetic with a data.shape of three",
}
"""Built-in data sources of these samples."""
_TAKES = {
    "gpt": ((TOKENS,), DATA_OF[TOKENS]),
    "mlp": ((IMAGES, _VECTORS), "data.kind=digits or synthetic, or model.kind=gpt"),
    "resnet": ((IMAGES,), DATA_OF[IMAGES]),
    "huggingface": ((TOKENS, IMAGES), f"{DATA_OF[TOKENS]}, or {DATA_OF[IMAGES]}"),
}
"""Samples that a model takes, and the remedy for others."""


def samples_of(data: DataConfig) -> str | None:
    """Samples of a built-in data source; None for a plug-in."""
    options = data.model_extra or {}
    if data.kind != "synthetic":
        return {"text": TOKENS, "tokens": TOKENS, "digits": IMAGES, "images": IMAGES}.get(data.kind)
    if options.get("task") == "language":
        return TOKENS
    return IMAGES if len(options.get("shape", ())) == 3 else _VECTORS


def other_data(config: Config) -> str | None:
    """What the model takes instead of the samples of its data; None where they fit."""
    kind, samples = config.model.kind, samples_of(config.data)
    takes, instead = _TAKES.get(kind, ((samples,), ""))
    return (
        None if samples in (None, *takes) else f"{kind} takes {either(takes)}, not {samples}; use {instead}"
    )
