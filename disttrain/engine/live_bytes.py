"""Bytes of live tensors, as an allocator without rounding would count them, on any device.

Works on fake tensors too, so that a model larger than this machine can be measured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators create within the block, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Live bytes of storages that were created within the block."""
        self.peak = 0
        """The largest value of `now`; assign `now` to it to begin a new peak."""
        self._sizes: dict[int, int] = {}

    def count_as(self, tensor: torch.Tensor, nbytes: int) -> None:
        """Count the storage of `tensor` as `nbytes` from now on: 0 for one from before the block."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            weakref.finalize(storage, self._freed, key).atexit = False
        self.now += nbytes - self._sizes.get(key, 0)
        self._sizes[key] = nbytes

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self._sizes:
                self.count_as(leaf, leaf.untyped_storage().nbytes())
        self.peak = max(self.peak, self.now)
        return result
