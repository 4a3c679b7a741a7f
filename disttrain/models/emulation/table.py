"""The table of an emulated model: its layers, their bytes and their seconds. Imports without torch."""

from __future__ import annotations

from typing import Any

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from disttrain.config.numbers_only import NumbersOnly
from disttrain.errors import ConfigError, nearest

MIB = 1 << 20


class Entry(NumbersOnly):
    """Base of the table and its layers; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Layer(Entry):
    """One layer, in the order of the forward pass."""

    name: str
    bytes: NonNegativeInt
    """Bytes of its parameters, and so of its gradients."""
    forward_s: NonNegativeFloat
    backward_s: NonNegativeFloat
    """Seconds until its gradients are ready."""


class Table(Entry):
    """The layers of a model and their seconds on some device."""

    layers: tuple[Layer, ...] = Field(min_length=1)
    samples: PositiveInt | None = None
    """Samples per micro-batch for which the seconds hold; others scale in proportion. Null: any number."""
    dtype_bytes: PositiveInt = 4
    """Bytes of one parameter: 4 or 2."""
    optimizer_s: NonNegativeFloat | None = None
    """Seconds of the optimizer; null: a real optimizer updates the parameters."""
    input_s: NonNegativeFloat | None = None
    """Additional seconds of loading a micro-batch; null: none."""
    source: str | None = None
    """Source of the numbers."""

    def share(self, samples: int) -> float:
        """Factor of the seconds for a micro-batch of `samples`."""
        return samples / self.samples if self.samples else 1.0

    @property
    def forward_s(self) -> float:
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        return sum(layer.backward_s for layer in self.layers)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)


def uniform(layers: int, layer_mb: float, forward_s: float, backward_s: float) -> Table:
    """Equal layers of `layer_mb` MiB; the seconds are those of whole passes. Raises `ConfigError`."""
    if layers < 1:
        raise ConfigError(f"model.layers={layers}: must be at least 1")
    for name, value in {"layer_mb": layer_mb, "forward_s": forward_s, "backward_s": backward_s}.items():
        if value < 0:
            raise ConfigError(f"model.{name}={value}: must not be negative")
    one = {"bytes": round(layer_mb * MIB), "forward_s": forward_s / layers, "backward_s": backward_s / layers}
    return Table(layers=tuple(Layer(name=f"layer{index}", **one) for index in range(layers)))


def parse(value: Any) -> Table:
    """A table from a mapping of its fields, or from the list of its layers. Raises `ConfigError`."""
    fields = {"layers": value} if isinstance(value, list) else value
    try:
        return Table.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        hint = ""
        if first["type"] == "extra_forbidden":
            allowed = list((Layer if where.startswith("layers") else Table).model_fields)
            hint = f"; allowed: {', '.join(allowed)}{nearest(where.split('.')[-1], allowed)}"
        raise ConfigError(f"model.table: {where or 'value'}: {first['msg'].lower()}{hint}") from None
