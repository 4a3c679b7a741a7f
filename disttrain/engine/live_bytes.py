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
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}

    def ignore(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave out the storages of `tensors`, which existed before the block."""
        for tensor in tensors:
            self._watch(tensor.untyped_storage(), counted=False)

    def recount(self, tensor: torch.Tensor, nbytes: int) -> None:
        """Count the storage of `tensor` as `nbytes` from now on."""
        self._watch(tensor.untyped_storage(), counted=False)
        key = tensor.untyped_storage()._cdata
        self.now += nbytes - self._sizes[key]
        self._sizes[key] = nbytes

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._watch(leaf.untyped_storage(), counted=True)
        self.peak = max(self.peak, self.now)
        return result

    def _watch(self, storage: torch.UntypedStorage, counted: bool) -> None:
        key = storage._cdata
        if key in self._live:
            return
        self._sizes[key] = storage.nbytes() if counted else 0
        self.now += self._sizes[key]

        def freed(_: object) -> None:
            self.now -= self._sizes.pop(key)
            self._live.pop(key, None)

        self._live[key] = weakref.ref(storage, freed)
