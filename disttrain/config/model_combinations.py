"""Models that cannot be built: sizes of a GPT, and built-in models of built-in data of another kind.

Without torch: the login node checks them before a job runs.
"""

from __future__ import annotations

from collections.abc import Mapping

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
_AT_LEAST_ONE = ("layers", "width", "heads", "vocab_multiple")


def check_sizes(config: Config) -> tuple[str, str] | None:
    """Dotted key and message for sizes of a GPT, as a check of `combinations`."""
    return refuse_sizes(config.model.model_extra or {}) if config.model.kind == "gpt" else None


def check_data(config: Config) -> tuple[str, str] | None:
    """Dotted key and message for samples that the model does not take, as a check of `combinations`."""
    kind, samples = config.model.kind, samples_of(config.data)
    options = config.model.model_extra or {}
    path, model_type = options.get("path"), options.get("model_type")
    if kind == "huggingface" and (path is None) == (model_type is None):
        given = f"model.path={path or 'null'} and model.model_type={model_type or 'null'}"
        return "model.kind", f"{given}: give exactly one of them"
    takes, instead = _TAKES.get(kind, (None, ""))
    if samples is None or takes is None or samples in takes:
        return None
    at = f"model.kind={kind} with data.kind={config.data.kind}"
    return "data.kind", f"{at}: {kind} takes {either(takes)}, not {samples}; use {instead}"


def samples_of(data: DataConfig) -> str | None:
    """Samples of a built-in data source; None for a plug-in."""
    options = data.model_extra or {}
    if data.kind != "synthetic":
        return {"text": TOKENS, "tokens": TOKENS, "digits": IMAGES, "images": IMAGES}.get(data.kind)
    if options.get("task") == "language":
        return TOKENS
    return IMAGES if len(options.get("shape", ())) == 3 else _VECTORS


def refuse_sizes(options: Mapping[str, int]) -> tuple[str, str] | None:
    """Dotted key and message for sizes of a GPT that exclude each other.

    The width of a head is even, because rotary positions turn pairs of values.
    """
    for name in _AT_LEAST_ONE:
        if options.get(name, 1) < 1:
            return f"model.{name}", f"model.{name}={options[name]}: must be at least 1"
    width, heads = options.get("width"), options.get("heads")
    if width is None or heads is None or width % (2 * heads) == 0:
        return None
    below = width // (2 * heads) * 2 * heads
    widths = " or ".join(str(each) for each in (below, below + 2 * heads) if each)
    others = _nearest_divisors(width // 2, heads) if width % 2 == 0 else []
    by_heads = f", or model.heads={either(others)}" if others else ""
    return (
        "model.heads",
        f"model.width={width} must be a multiple of 2 x model.heads={heads}; use model.width={widths}"
        f"{by_heads}",
    )


def _nearest_divisors(number: int, wanted: int) -> list[int]:
    """The largest divisor of `number` below `wanted`, and the smallest one above, where they exist."""
    divisors = [size for size in range(1, number + 1) if number % size == 0]
    return [*[d for d in divisors if d < wanted][-1:], *[d for d in divisors if d > wanted][:1]]
