"""The table of an emulated model: its layers, their bytes and their seconds. Imports without torch."""

from __future__ import annotations

from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from disttrain.errors import ConfigError, nearest

MIB = 1 << 20


class Entry(BaseModel):
    """Base of the table and its layers: closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Layer(Entry):
    """One layer, in the order of the forward pass."""

    name: str
    bytes: NonNegativeInt
    """Of its parameters, and so of the gradients that travel."""
    forward_s: NonNegativeFloat
    backward_s: NonNegativeFloat
    """Its gradients are there when these have passed."""


class Table(Entry):
    """The layers of a model and what they take on some device."""

    layers: tuple[Layer, ...] = Field(min_length=1)
    samples: PositiveInt | None = None
    """Samples that the seconds are for, others in proportion; null: the same for any number of samples."""
    dtype_bytes: PositiveInt = 4
    """Of one parameter: 4 or 2."""
    optimizer_s: NonNegativeFloat | None = None
    """Seconds of the optimizer; null: a real optimizer updates the parameters."""
    input_s: NonNegativeFloat | None = None
    """Seconds that a micro-batch is waited for; null: only as long as loading it takes."""
    source: str | None = None
    """Where the numbers are from."""

    def share(self, samples: int) -> float:
        """What seconds are multiplied by where so many samples are in a micro-batch."""
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
    """Equal layers of `layer_mb` MiB; the seconds are of the whole passes."""
    if layers < 1:
        raise ConfigError(f"model.layers={layers}: must be at least 1")
    for name, value in {"layer_mb": layer_mb, "forward_s": forward_s, "backward_s": backward_s}.items():
        if value < 0:
            raise ConfigError(f"model.{name}={value}: must not be negative")
    one = {"bytes": round(layer_mb * MIB), "forward_s": forward_s / layers, "backward_s": backward_s / layers}
    return Table(layers=tuple(Layer(name=f"layer{index}", **one) for index in range(layers)))


def parse(value: Any) -> Table:
    """A table given as plain data: a mapping of its fields, or the list of its layers alone."""
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
