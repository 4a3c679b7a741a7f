"""Record of layer times."""

from __future__ import annotations

from disttrain.records.base import Record


class LayerTime(Record):
    """Times of one module with parameters of its own."""

    name: str
    bytes: int
    """Size of its trained parameters."""
    forward_s: float
    """Seconds from the end of the previous layer (or the start of the pass) to its own end."""
    backward_s: float
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
