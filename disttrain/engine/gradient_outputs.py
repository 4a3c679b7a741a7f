"""Tensors in a model's output at which a backward pass can begin."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def grad_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors that require a gradient, at any depth of tuples, lists, mappings, dataclasses and
    containers registered with torch's pytree."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                yield leaf
        elif isinstance(leaf, Mapping):  # a class that is not registered with pytree
            for value in leaf.values():
                yield from grad_tensors(value)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from grad_tensors(getattr(leaf, field.name, None))
