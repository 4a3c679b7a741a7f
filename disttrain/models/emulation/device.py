"""Implementations of the seconds of an emulated layer: on a CPU the rank waits and its processor is idle, on
CUDA a kernel counts the cycles of the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

import torch

from disttrain.models.emulation.deadline_timer import DeadlineTimer

_Item = TypeVar("_Item")

_SLEEP_CYCLES = 50_000_000


class Device(Protocol):
    """Emulates the layers of a pass one after the other."""

    @property
    def timing_error_s(self) -> float | None:
        """Seconds by which passes ended late, summed over passes; None where unknown."""

    def start(self) -> None:
        """Begin a pass."""

    def advance(self, seconds: float) -> None:
        """Compute a layer for `seconds`."""

    def end(self) -> None:
        """End the pass."""


class Waiting(DeadlineTimer):
    """Waits on the CPU."""


class Sleeping:
    """Sleeps on a CUDA device, in the order of the current stream."""

    timing_error_s = None

    def __init__(self, device: torch.device) -> None:
        self._cycles_per_s = _cycles_per_second(device)

    def start(self) -> None:
        pass

    def advance(self, seconds: float) -> None:
        if seconds > 0:
            torch.cuda._sleep(round(seconds * self._cycles_per_s))

    def end(self) -> None:
        pass


def make_device(device: torch.device) -> Device:
    return Sleeping(device) if device.type == "cuda" else Waiting()


def each_after(seconds: float, items: Iterator[_Item], device: Device) -> Iterator[_Item]:
    """Yield `items`, each delayed by `seconds` on `device`.

    The device waits, because queued work of the device would hide a wait on the host.
    """
    for item in items:
        device.start()
        device.advance(seconds)
        yield item


def _cycles_per_second(device: torch.device) -> float:
    """Cycles per second of the counter of a device-side sleep."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        torch.cuda._sleep(_SLEEP_CYCLES)  # an idle device raises its clock with the first work
        begin.record()
        torch.cuda._sleep(_SLEEP_CYCLES)
        end.record()
        end.synchronize()
    return _SLEEP_CYCLES / (begin.elapsed_time(end) / 1e3)
