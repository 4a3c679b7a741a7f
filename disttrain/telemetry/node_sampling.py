"""Hardware sampling of a run: the first rank of each node samples the GPUs and processes of all its ranks."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.errors import ConfigError
from disttrain.hardware.fields import FIELDS, Field
from disttrain.hardware.readings import GpuId
from disttrain.hardware.sampler import HardwareSampler, LocalRank, Node, NodeSamples
from disttrain.records.communication import NcclLog
from disttrain.records.run_directory import Attempt
from disttrain.runtime.process_group import World
from disttrain.telemetry.network.nccl_log import read_first_steps


def identify(device: torch.device) -> GpuId | None:
    """The GPU of a torch device; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", "")) or None
    if uuid and not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    given = [number for number in numbers if number is not None]
    return GpuId(uuid, "{:08x}:{:02x}:{:02x}.0".format(*given) if len(given) == 3 else None)


def load_fields(names: Sequence[str]) -> tuple[Field, ...]:
    """The table of fields with the rows `package.module:ROW` of `telemetry.fields`. Raises `ConfigError`."""
    rows = list(FIELDS)
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            row = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"telemetry.fields: no row {name!r} ({error}); needed: package.module:ROW"
            ) from None
        if not isinstance(row, Field):
            raise ConfigError(f"telemetry.fields: {name} is no disttrain.hardware.fields.Field")
        rows.append(row)
    return tuple(rows)


class NodeTelemetry:
    """Samples every `telemetry.gpu_every_s` (0: never) on each node's first rank; idle on the others."""

    def __init__(self, attempt: Attempt, world: World, config: TelemetryConfig) -> None:
        self.fields = load_fields(config.fields)
        self.devices = world.size
        """Number of devices of the run, set by `start`: smaller than the number of ranks where ranks share a
        GPU."""
        self.device = ""
        """Name of this rank's device (see `LocalRank`), set by `start`."""
        self._attempt = attempt
        self._world = world
        self._config = config
        self._sampler: HardwareSampler | None = None
        self._segment = 0
        self._outside = False
        self.nccl: tuple[NcclLog | None, str | None] = (None, None)
        """NCCL's log of the first steps, or the reason for none."""

    def start(self, start_clock: Callable[[], None], is_measured: Callable[[], bool]) -> None:
        """Start the clock of the steps and the sampling. All ranks call this together.

        `is_measured`, called by the sampler's thread, gives whether the current step is measured.
        """
        device = self._world.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the clocks of device and host then start together
        origin_s = time.monotonic()
        start_clock()
        node = self._world.rank // self._world.local_size
        others = [torch.device("cuda", index) for index in range(1, self._world.gpus_per_rank)]
        gpus = tuple(filter(None, map(identify, [device, *others])))
        own = LocalRank(self._world.rank, node, os.getpid(), gpus, origin_s)
        ranks: list[LocalRank] = self._world.all_gather_object(own)
        self.device = own.devices[0]
        self.devices = len({device for rank in ranks for device in rank.devices})
        if self._config.gpu_every_s and self._world.local_rank == 0:

            def segment() -> int | None:
                return self._segment if is_measured() and not self._outside else None

            local = [rank for rank in ranks if rank.node == node]
            backend = self._world.backend if self._world.nodes > 1 else None
            every_s, flush_every_s = self._config.gpu_every_s, self._config.flush_every_s
            sampled = Node(self._attempt, local, every_s, flush_every_s, self.fields)
            self._sampler = HardwareSampler(sampled, segment, backend)
            self._sampler.start()

    def warmed_up(self) -> None:
        """The next step is the first measured one: end and read NCCL's log, and sample the links, on ranks
        that sample."""
        if self._sampler and self._world.backend == "nccl" and self.nccl == (None, None):
            node = self._world.rank // self._world.local_size
            self.nccl = read_first_steps(self._attempt, node)
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

    def live(self) -> dict[str, float]:
        """Means of the newest samples of this node, by their names in `Progress`."""
        return self._sampler.live() if self._sampler else {}

    def accumulated(self) -> NodeSamples | None:
        """The accumulated samples of this node; None on ranks that do not sample."""
        return self._sampler.accumulated() if self._sampler else None

    def _sample_links(self) -> None:
        if self._sampler:
            self._sampler.sample_links()

    def close(self) -> None:
        """Take a last sample and end."""
        self.warmed_up()  # also where the run had no measured step
        if self._sampler:
            self._sampler.close()
