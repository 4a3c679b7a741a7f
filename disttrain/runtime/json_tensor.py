"""Plain data as a tensor of bytes, so that a checkpoint holds tensors alone."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor


def encode_json(value: Any) -> Tensor:
    """The JSON text of `value` as uint8."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def decode_json(tensor: Tensor) -> Any:
    """The value that `encode_json` was given."""
    return json.loads(tensor.numpy().tobytes())
