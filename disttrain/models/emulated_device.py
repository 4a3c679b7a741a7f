"""Seconds of emulated layers: on a CPU the rank waits for deadlines, on CUDA a kernel counts cycles.

On a CPU a collective of `fully_shard` blocks the computing thread until it is done, so deadlines are
postponed by its duration. Hooks and copies run on the host and postpone nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from disttrain.models.hooks import Item
from disttrain.runtime.fully_shard_hooks import (
    Dimension,
    observe,
    observers_of,
    param_groups,
    why_unobservable,
)
from disttrain.runtime.process import wait_until

_SLEEP_CYCLES = 50_000_000


class DeadlineTimer:
    """Waits on the CPU: each deadline follows the previous deadline, not the time at which that was reached.

    So host work between two layers (hooks, copies into buckets, waiting for a processor) does not accumulate,
    as on a device that computes asynchronously. While the device cannot compute, the timer is `paused`.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._deadline = 0.0
        self.restarts = False
        """Whether each layer starts when the host reaches it, because unseen communication may have delayed
        it."""

    def start(self) -> None:
        """Begin a pass."""
        self._deadline = self._now()

    def advance(self, seconds: float) -> None:
        """Compute a layer for `seconds`."""
        if self.restarts:
            self.start()
        self._deadline += seconds
        wait_until(self._deadline, self._now, self._sleep)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Postpone the deadlines by the time spent within."""
        began = self._now()
        try:
            yield
        finally:
            self._deadline += self._now() - began

    def end(self) -> float | None:
        """End the pass. Returns the seconds by which it ended late; None where unknown."""
        return max(0.0, self._now() - self._deadline)


class Sleeping:
    """The same methods on a CUDA device, which sleeps in the order of the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._cycles_per_s = _cycles_per_second(device)

    def start(self) -> None:
        pass

    def advance(self, seconds: float) -> None:
        if seconds > 0:
            torch.cuda._sleep(round(seconds * self._cycles_per_s))

    def end(self) -> None:
        return None


Device = DeadlineTimer | Sleeping
"""Emulates the layers of a pass one after the other."""


def make_device(device: torch.device) -> Device:
    return Sleeping(device) if device.type == "cuda" else DeadlineTimer()


def each_after(seconds: float, items: Iterator[Item], device: Device) -> Iterator[Item]:
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


def pause_in_collectives(model: nn.Module, timer: DeadlineTimer) -> None:
    """Observe the collectives of the model, if it has any, so that `timer` pauses in each.

    Called before every pass, because the telemetry restores FSDP2's own objects when it closes.
    """
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        if why_unobservable(module) is not None:
            timer.restarts = True
        elif param_groups(module) and not any(isinstance(one, _Pause) for one in observers_of(module)):
            observe(module, _Pause(timer), partial(setattr, timer, "restarts", True))


class _Pause:
    """Pauses `timer` during each collective."""

    def __init__(self, timer: DeadlineTimer) -> None:
        self._timer = timer

    def __call__(self, dimension: Dimension | None) -> AbstractContextManager[None]:
        return self._timer.paused()
