"""Hardware sampling of a run: the first rank of each node samples the GPUs and processes of all its ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.hardware.fields import FIELDS, load_field
from disttrain.hardware.node_sampler import GpuId, HardwareSampler, LocalRank, Node, NodeSamples
from disttrain.records.communication import NcclLog
from disttrain.records.heartbeat import take_over_samples
from disttrain.records.run_directory import Attempt
from disttrain.runtime.process_group import World
from disttrain.telemetry.network import read_first_steps


def identify(device: torch.device) -> GpuId | None:
    """The GPU of a torch device; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    uuid = str(properties.uuid)
    if not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    given = [number for number in numbers if number is not None]
    return GpuId(uuid, "{:08x}:{:02x}:{:02x}.0".format(*given) if len(given) == 3 else None)


class NodeTelemetry:
    """Samples every `telemetry.gpu_every_s` (0: never) on each node's first rank; idle on the others."""

    def __init__(self, attempt: Attempt, world: World, config: TelemetryConfig) -> None:
        self.fields = (*FIELDS, *map(load_field, config.fields))
        self.devices = world.size
        """Number of devices of the run, set by `start`: smaller than the number of ranks where ranks share a
        GPU."""
        self.device = ""
        """Name of this rank's device (see `LocalRank`), set by `start`."""
        self._attempt = attempt
        self._world = world
        self._config = config
        self._node = world.rank // world.local_size
        self._sampler: HardwareSampler | None = None
        self._segment = 0
        self._outside = False
        self.nccl: tuple[NcclLog | None, str | None] = (None, None)
        """NCCL's log of the first steps, or the reason for none."""

    def start(self, start_clock: Callable[[], None], is_measured: Callable[[], bool]) -> None:
        """Start the clock of the steps and the sampling. All ranks call this together.

        `is_measured`, called by the sampler's thread, gives whether the current step is measured.
        """
        world, config = self._world, self._config
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)  # the clocks of device and host then start together
        origin_s = time.monotonic()
        start_clock()
        others = [torch.device("cuda", index) for index in range(1, world.gpus_per_rank)]
        gpus = tuple(filter(None, map(identify, [world.device, *others])))
        own = LocalRank(world.rank, self._node, os.getpid(), gpus, origin_s)
        ranks: list[LocalRank] = world.all_gather_object(own)
        self.device = own.devices[0]
        self.devices = len({device for rank in ranks for device in rank.devices})
        if config.gpu_every_s and world.local_rank == 0:

            def segment() -> int | None:
                return self._segment if is_measured() and not self._outside else None

            local = [rank for rank in ranks if rank.node == self._node]
            backend = world.backend if world.nodes > 1 else None
            take_over_samples(self._attempt, self._node)
            node = Node(self._attempt, local, config.gpu_every_s, config.flush_every_s, self.fields, backend)
            self._sampler = HardwareSampler(node, segment)
            self._sampler.start()

    def warmed_up(self) -> None:
        """The next step is the first measured one: end and read NCCL's log, and sample the links, on ranks
        that sample."""
        if self._sampler and self._world.backend == "nccl" and self.nccl == (None, None):
            self.nccl = read_first_steps(self._attempt, self._node)
        self._sample_links()

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """Within, samples do not count; the next measured step begins a new segment."""
        self._sample_links()
        self._outside = True
        yield
        self._segment += 1
        self._outside = False
        self._sample_links()

    def _sample_links(self) -> None:
        if self._sampler:
            self._sampler.sample_links()

    def live(self) -> dict[str, float]:
        """Means of the newest samples of this node, by their names in `Progress`."""
        return self._sampler.live() if self._sampler else {}

    def accumulated(self) -> NodeSamples | None:
        """The accumulated samples of this node; None on ranks that do not sample."""
        return self._sampler.accumulated() if self._sampler else None

    def close(self) -> None:
        """Take a last sample and end."""
        self.warmed_up()  # also where the run had no measured step
        if self._sampler:
            self._sampler.close()
