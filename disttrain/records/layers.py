"""Layer times: the record of those measured in a run, and the table that an emulated model replays."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from disttrain.errors import ConfigError, nearest
from disttrain.records.base import Part, Record


class LayerTime(Part, frozen=True, strict=True, allow_inf_nan=False):
    """One layer, a module with parameters of its own, in the order of the forward pass."""

    name: str
    bytes: NonNegativeInt
    """Size of its trained parameters, and so of its gradients."""
    forward_s: NonNegativeFloat
    """Seconds from the end of the previous layer (or the start of the pass) to its own end."""
    backward_s: NonNegativeFloat
    """Seconds from the last gradient of the previous layer to its own last gradient."""


class Layers(Record):
    """`layers.json`: times of each layer on rank 0, means over passes after the last step.

    A pass is divided at the ends of layers, so the times of all layers sum to the pass. Work without
    parameters counts to the layer that ends next, the loss to the last layer.
    """

    attempt: int
    device: str
    emulated: bool
    passes: int
    samples: int
    """Samples in each pass."""
    dtype_bytes: int
    """Bytes of one parameter."""
    layers: list[LayerTime]
    """Layers in the reverse order of their gradients."""


class LayerTable(Part, frozen=True, strict=True, allow_inf_nan=False):
    """The layers of an emulated model and their seconds on some device."""

    layers: tuple[LayerTime, ...] = Field(min_length=1)
    samples: PositiveInt | None = None
    """Samples per micro-batch for which the seconds hold; others scale in proportion. Null: any number."""
    dtype_bytes: Literal[2, 4] = 4
    """Bytes of one parameter."""
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


def parse_table(value: Any) -> LayerTable:
    """A table from a mapping of its fields, or from the list of its layers. Raises `ConfigError`."""
    if isinstance(value, str):  # the config holds the content of a file
        raise ConfigError(f"model.table={value!r}: needed is a file (.yaml, .yml, .json), or layers")
    try:
        # as JSON, because strict checks of Python objects refuse a list for a tuple
        return LayerTable.model_validate_json(
            json.dumps({"layers": value} if isinstance(value, list) else value)
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        hint = ""
        if first["type"] == "extra_forbidden":
            allowed = list((LayerTime if where.startswith("layers") else LayerTable).model_fields)
            hint = f"; allowed: {', '.join(allowed)}{nearest(where.split('.')[-1], allowed)}"
        raise ConfigError(f"model.table: {where or 'value'}: {first['msg'].lower()}{hint}") from None
