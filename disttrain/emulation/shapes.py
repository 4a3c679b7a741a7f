"""Tables of named models from the shapes of their layers: bytes, and seconds at a stated rate.

Forward FLOPs count matrix products and convolutions (a multiply-add is 2); causal attention counts in full.
The backward pass has twice the FLOPs of the forward pass: one product for the gradient of the inputs, one for
that of the weights. Norms, activations and embedding look-ups count as 0. The seconds assume the same rate in
every layer; a table from `submit.py emulate` has measured rates. Imports without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disttrain.emulation.table import Layer, Table
from disttrain.errors import ConfigError, nearest

_IMAGE, _IMAGE_CLASSES = 224, 1000


@dataclass(frozen=True)
class Shape:
    """One layer: number of parameters, and forward FLOPs of one sample."""

    name: str
    parameters: int
    flops: int


@dataclass(frozen=True)
class GPTShape:
    """A decoder with learned positions, biases and a tied output layer, as in GPT-2 and GPT-3."""

    layers: int
    width: int
    context: int
    vocabulary: int = 50257


GPTS = {
    "gpt-124m": GPTShape(12, 768, 1024),
    "gpt-350m": GPTShape(24, 1024, 1024),
    "gpt-1.3b": GPTShape(24, 2048, 2048),
}
NAMES = ("resnet50", *GPTS)


def known(name: str, rate_tflops: float | None, dtype_bytes: int) -> Table:
    """The table of model `name` for one sample, on a device of `rate_tflops` (1e12 FLOP/s).

    Raises `ConfigError` for an unknown name or a missing rate.
    """
    if name not in NAMES:
        raise ConfigError(
            f"model.table={name!r} is neither a file (.yaml, .yml, .json) nor one of {', '.join(NAMES)}"
            f"{nearest(name, NAMES)}"
        )
    if rate_tflops is None or rate_tflops <= 0:
        raise ConfigError(
            f"model.rate_tflops={rate_tflops}: model.table={name} needs the rate of a device, more than 0"
        )
    shapes = resnet50() if name == "resnet50" else gpt(GPTS[name])
    per_second = rate_tflops * 1e12
    layers = tuple(
        Layer(
            name=shape.name,
            bytes=shape.parameters * dtype_bytes,
            forward_s=shape.flops / per_second,
            backward_s=2 * shape.flops / per_second,
        )
        for shape in shapes
    )
    return Table(
        layers=layers,
        samples=1,
        dtype_bytes=dtype_bytes,
        source=f"{name}: shapes of its layers at {rate_tflops:g} TFLOP/s",
    )


def resnet50() -> Iterator[Shape]:
    """ResNet-50 (He et al. 2015, arXiv:1512.03385), 224 x 224 inputs, stride in the 3x3 of a bottleneck.

    A convolution and the batch norm that follows it are one layer.
    """
    size = _IMAGE // 2
    yield _convolution("stem", 3, 64, 7, size)
    size //= 2  # max-pooling
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            name = f"stage{stage + 1}.{block}"
            yield _convolution(f"{name}.conv1", inputs, width, 1, size)
            if stage and not block:
                size //= 2
            yield _convolution(f"{name}.conv2", width, width, 3, size)
            yield _convolution(f"{name}.conv3", width, 4 * width, 1, size)
            if not block:
                yield _convolution(f"{name}.shortcut", inputs, 4 * width, 1, size)
            inputs = 4 * width
    yield Shape("head", inputs * _IMAGE_CLASSES + _IMAGE_CLASSES, 2 * inputs * _IMAGE_CLASSES)


def gpt(shape: GPTShape) -> Iterator[Shape]:
    """The layers of a GPT (Radford et al. 2019; Brown et al. 2020, arXiv:2005.14165).

    The output layer shares the embedding's weights, so their gradient is reduced once, at the end of the
    backward pass. A norm belongs to the layer that follows it.
    """
    width, context, vocabulary = shape.width, shape.context, shape.vocabulary
    norm = 2 * width
    yield Shape("embedding", vocabulary * width + context * width, 0)
    for block in range(shape.layers):
        linear = 2 * context * width * width
        scores = 2 * context * context * width  # queries x keys; weights x values has the same
        yield Shape(f"block{block}.qkv", norm + 3 * width * width + 3 * width, 3 * linear + 2 * scores)
        yield Shape(f"block{block}.out", width * width + width, linear)
        yield Shape(f"block{block}.up", norm + 4 * width * width + 4 * width, 4 * linear)
        yield Shape(f"block{block}.down", 4 * width * width + width, 4 * linear)
    yield Shape("head", norm, 2 * context * width * vocabulary)


def _convolution(name: str, inputs: int, outputs: int, kernel: int, size: int) -> Shape:
    """A convolution without bias to `size` x `size` outputs, and its batch norm."""
    weights = inputs * outputs * kernel * kernel
    return Shape(name, weights + 2 * outputs, 2 * weights * size * size)
