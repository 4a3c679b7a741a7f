"""Timestamps outside of steps: readings of the host's clock, or events on a CUDA stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def moments(device: torch.device) -> Iterator[tuple[Callable[[], int], Callable[[], list[float]]]]:
    """A function that takes a timestamp and returns its number, and one that reads all of them, in seconds.

    Reading waits for the device.
    """
    if device.type != "cuda":
        times: list[float] = []

        def mark() -> int:
            times.append(time.perf_counter())
            return len(times) - 1

        yield mark, lambda: times
        return
    events: list[torch.cuda.Event] = []

    def record() -> int:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
        return len(events) - 1

    def read() -> list[float]:
        torch.cuda.synchronize(device)
        return [events[0].elapsed_time(event) / 1e3 for event in events]

    yield record, read
