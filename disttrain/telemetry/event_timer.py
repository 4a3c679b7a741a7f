"""Timestamps outside of steps: readings of the host's clock, or events on a CUDA stream."""

from __future__ import annotations

import time

import torch


class EventTimer:
    """Records timestamps: `time.perf_counter` on a CPU, events on the current stream on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def record(self) -> int:
        """Record a timestamp; its index in `times_s`."""
        if self._device.type != "cuda":
            self._times.append(time.perf_counter())
            return len(self._times) - 1
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        return len(self._events) - 1

    def times_s(self) -> list[float]:
        """All timestamps, in seconds from an arbitrary origin. Waits for the device."""
        if self._device.type != "cuda":
            return self._times
        torch.cuda.synchronize(self._device)
        return [self._events[0].elapsed_time(event) / 1e3 for event in self._events]
