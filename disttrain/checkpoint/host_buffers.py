"""Host memory that holds the tensors of one checkpoint until they are on disk."""

from __future__ import annotations

import torch

from disttrain.checkpoint.storage import State


class HostBuffers:
    """Copies of tensors in host memory, whose buffers the next copy uses again.

    Buffers of CUDA tensors are pinned. The device then copies at the rate of the bus and in the order of its
    stream: the host does not wait, and training cannot change a tensor before its copy.
    """

    def __init__(self) -> None:
        self._buffers: State = {}
        self._copied: torch.cuda.Event | None = None

    def copy(self, state: State) -> State:
        """Begin to copy `state`, over the copies of the call before. Call `wait` before they are read."""
        self._buffers = {name: self._buffer(name, value) for name, value in state.items()}
        for name, value in state.items():
            self._buffers[name].copy_(value.detach(), non_blocking=True)
        if any(value.is_cuda for value in state.values()):
            self._copied = torch.cuda.Event()
            self._copied.record()
        return self._buffers

    def wait(self) -> None:
        """Wait until the copies are complete; from any thread."""
        if self._copied is not None:
            self._copied.synchronize()

    def _buffer(self, name: str, value: torch.Tensor) -> torch.Tensor:
        kept = self._buffers.get(name)
        if kept is not None and (kept.shape, kept.dtype) == (value.shape, value.dtype):
            return kept
        return torch.empty_like(value, device="cpu", pin_memory=value.is_cuda, requires_grad=False)
