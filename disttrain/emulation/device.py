"""Implementations of the seconds of an emulated layer.

| work | on a CPU | on CUDA |
|---|---|---|
| `wait` | the rank waits and its processor is idle | a kernel counts the cycles of the device |
| `matmul` | matrix products for that long | the same, on the device |

Ranks that share a device slow matrix products, which are calibrated on an idle device, but not device-side
sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, Protocol, TypeVar

import torch

from disttrain.emulation.deadline_timer import DeadlineTimer

Work = Literal["wait", "matmul"]
_Item = TypeVar("_Item")

_SLEEP_CYCLES = 50_000_000
_PRODUCT = {"cpu": 128, "cuda": 1024}
"""Width of the square matrices: one product takes well below 1 ms, which bounds the rounding error."""
_CALIBRATION_S = 0.1


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


class Multiplying:
    """Multiplies matrices for a layer's seconds and carries the rounding error to the next layer."""

    timing_error_s = None

    def __init__(self, device: torch.device) -> None:
        width = _PRODUCT[device.type]
        self._left = torch.randn(width, width, device=device)
        self._result = torch.empty_like(self._left)
        self._product_s = self._calibrate(device)
        self._owed_s = 0.0

    def start(self) -> None:
        pass

    def advance(self, seconds: float) -> None:
        self._owed_s += seconds
        count = round(self._owed_s / self._product_s)
        self._owed_s -= count * self._product_s
        self._multiply(count)

    def end(self) -> None:
        pass

    def _multiply(self, count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                torch.mm(self._left, self._left, out=self._result)

    def _calibrate(self, device: torch.device) -> float:
        """Seconds of one product in a long sequence of products."""
        count, taken = 8, 0.0
        while taken < _CALIBRATION_S:  # the first rounds warm up
            count *= 2
            began = time.perf_counter()
            self._multiply(count)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken = time.perf_counter() - began
        return taken / count


def make_device(work: Work, device: torch.device) -> Device:
    """The implementation of `work` on `device`. Calibration of matrix products takes about 0.2 s."""
    if work == "matmul":
        return Multiplying(device)
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
