"""What each layer of a model takes."""

from __future__ import annotations

from disttrain.records.base import Record


class LayerTime(Record):
    """One module that has parameters of its own."""

    name: str
    bytes: int
    """Of its parameters that are trained."""
    forward_s: float
    """From the end of the layer before, or of what began the pass, to its own."""
    backward_s: float
    """From the last gradient of the layer before to its own last gradient."""


class Layers(Record):
    """`layers.json`: what each layer took on rank 0, means over passes that were made after the last step.

    Each pass is cut where a layer ends, so the layers' seconds sum to it: what has no parameters counts to
    the layer that ends next, the loss to the last one.
    """

    attempt: int
    device: str
    emulated: bool
    passes: int
    samples: int
    """In each pass."""
    dtype_bytes: int
    """Of one parameter."""
    layers: list[LayerTime]
    """In the reverse of the order in which their gradients were ready."""
