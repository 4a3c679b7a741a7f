"""What is measured beside the steps: one rank of each node samples the GPUs and processes of them all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from disttrain.records.run_directory import Attempt
from disttrain.runtime.process_group import World
from disttrain.telemetry.hardware.nvml import identify
from disttrain.telemetry.hardware.sampler import HardwareSampler, LocalRank, NodeSamples


class NodeTelemetry:
    """Samples every `every_s` seconds (0: never) on each node's first rank; elsewhere it does nothing."""

    def __init__(self, attempt: Attempt, world: World, every_s: float) -> None:
        self.devices = world.size
        """Devices of the whole run, known after `start`: fewer than ranks where several share a GPU."""
        self.device = ""
        """Names that of this rank (see `LocalRank`); known after `start`."""
        self._attempt = attempt
        self._world = world
        self._every_s = every_s
        self._sampler: HardwareSampler | None = None
        self._segment = 0  # of steps without a validation in between
        self._outside = False

    def start(self, start_clock: Callable[[], None], measuring: Callable[[], bool]) -> None:
        """Start the clock of the steps, and begin. All ranks call this together.

        `measuring` tells whether steps count by now; the sampler's thread asks.
        """
        device = self._world.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # so that the device's clock and the host's begin together
        origin_s = time.monotonic()
        start_clock()
        node = self._world.rank // self._world.local_size
        own = LocalRank(self._world.rank, node, os.getpid(), identify(device), origin_s)
        ranks: list[LocalRank] = self._world.all_gather_object(own)
        self.device = own.device
        self.devices = len({rank.device for rank in ranks})
        if self._every_s and self._world.local_rank == 0:

            def segment() -> int | None:
                return self._segment if measuring() and not self._outside else None

            here = [rank for rank in ranks if rank.node == node]
            self._sampler = HardwareSampler(self._attempt, here, self._every_s, segment)
            self._sampler.start()

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """What happens in here is not measured, nor is what a counter grows by across it."""
        self._outside = True
        yield
        self._segment += 1
        self._outside = False

    def live(self) -> dict[str, float]:
        """The newest figures of this node, by their names in `Progress`."""
        return self._sampler.live() if self._sampler else {}

    def usage(self) -> NodeSamples | None:
        """What this node's samples add up to by now; None where this rank does not sample."""
        return self._sampler.usage() if self._sampler else None

    def close(self) -> None:
        """Take a last sample and end."""
        if self._sampler:
            self._sampler.close()
