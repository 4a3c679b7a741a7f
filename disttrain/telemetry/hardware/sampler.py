"""One thread per node that samples the GPUs and processes of the node's ranks beside the training loop.

The thread never delays a step: NVML calls release the interpreter's lock, and the thread shares one number
with the loop. A reading that fails loses its own value, a GPU that cannot be read its own sample. Any other
error ends the samples of the GPUs or those of the processes, never both, and never the training.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from disttrain.errors import in_one_line
from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.fabric import NcclLog
from disttrain.records.hardware import GpuSample, HostSample, NodeGpus
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.device import usable_processors
from disttrain.telemetry.fabric.link_counters import (
    LinkAccumulator,
    LinkReader,
    LinkSample,
    expected_adapters,
)
from disttrain.telemetry.hardware.aggregation import Accumulator, GpuAccumulator, ProcessAccumulator
from disttrain.telemetry.hardware.gpu_reader import GpuId, GpuReader, Nvml, Unavailable
from disttrain.telemetry.hardware.host import HostProcessors, ProcessReader, host_memory
from disttrain.telemetry.hardware.sampled_fields import GPU_FIELDS, PROCESS_FIELDS
from disttrain.telemetry.json_lines import JsonLinesWriter

T = TypeVar("T")
LINES_AT_FULL_RATE = 20_000
"""Samples of a device written at the full rate; then every 2nd, after as many lines every 4th, and so on: a
year at one sample per second is 200,000 lines. The figures take every sample."""
CLOSE_S = 5.0
"""Seconds that the end of a run waits for a call into the driver: a lost GPU may never answer."""


@dataclass(frozen=True)
class LocalRank:
    """A rank of this node, as the sampler needs it."""

    rank: int
    node: int
    pid: int
    gpu: GpuId | None
    origin_s: float
    """The monotonic clock when the rank's loop began; all processes of a host share that clock."""
    other_gpus: tuple[GpuId, ...] = ()
    """GPUs beside `gpu` that a rank of DataParallel computes on."""

    @property
    def device(self) -> str:
        """The name of the rank's first device (`device_name`)."""
        return self.devices[0]

    @property
    def devices(self) -> list[str]:
        """The names of the rank's devices."""
        if self.gpu is None:
            return [f"rank {self.rank}"]
        return [self.device_name(gpu) for gpu in (self.gpu, *self.other_gpus)]

    def device_name(self, gpu: GpuId) -> str:
        """The GPU's name within the run, equal for ranks that share it, also across nodes: one machine may
        stand for several nodes."""
        return gpu.uuid or f"{gpu.pci_bus_id} of node {self.node}"


@dataclass
class NodeSamples:
    """The accumulated samples of one node, sent to rank 0."""

    gpus: list[GpuAccumulator] = field(default_factory=list)
    hosts: list[ProcessAccumulator] = field(default_factory=list)
    gpu_reason: str | None = None
    """The reason why there are no GPU samples."""
    links: list[LinkAccumulator] = field(default_factory=list)
    expected_adapters: list[str] | None = None
    """Ports that NCCL should use, also those without a counter; None where links are not sampled."""
    nccl: NcclLog | None = None
    nccl_reason: str | None = None
    """The reason why there is no log of NCCL."""


class HardwareSampler:
    """Samples every `every_s` seconds from `start` to `close`.

    `segment` gives the segment of measured steps that the loop is in
    (`disttrain.telemetry.hardware.aggregation`). `backend` is that of the processes of several nodes, whose
    links are sampled, too; None: no link is. The files are written every `flush_every_s` seconds.
    """

    def __init__(
        self,
        attempt: Attempt,
        ranks: Sequence[LocalRank],
        every_s: float,
        segment: Callable[[], int | None],
        backend: str | None = None,
        flush_every_s: float = 0.0,
    ) -> None:
        self._attempt = attempt
        self._ranks = ranks
        self._node = ranks[0].node
        self._every_s = every_s
        self._segment = segment
        self._backend = backend
        self._flush_every_s = flush_every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._accumulated = NodeSamples(gpu_reason=None if any(r.gpu for r in ranks) else "no rank has a GPU")
        self._links: LinkReader | None = None
        self._links_lock = threading.Lock()  # held from a reading of the links until it is added
        self._lock = threading.Lock()  # held while accumulators grow, never during a call into the driver
        self._live: dict[str, float] = {}
        self._live_at = 0.0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take a last sample and end. Waits at most `CLOSE_S` seconds."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def sample_links(self) -> None:
        """Sample the links in the caller's thread, where measured steps begin or end, until an interval has
        counted. Without this, a run that is shorter than `every_s` has no interval. Raises nothing."""
        if self._links is not None and not any(link.seconds for link in self._accumulated.links):
            _attempted("links", self._take_links)

    def accumulated(self) -> NodeSamples:
        """A copy of the accumulated samples."""
        with self._lock:
            return copy.deepcopy(self._accumulated)

    def live(self) -> dict[str, float]:
        """Means of the newest samples over the node's GPUs and ranks, by their names in `Progress`; empty
        where the newest samples are old."""
        fresh = time.monotonic() - self._live_at < 5 * self._every_s + CLOSE_S
        return self._live if fresh else {}

    def _run(self) -> None:
        arguments = (self._attempt, self._node, self._ranks, self._accumulated, self._flush_every_s)
        opened: dict[str, _SampleReader | None] = {
            "GPUs": _attempted("GPUs", lambda: _GpuReader(*arguments, self._every_s)),
            "processes": _attempted("processes", lambda: _ProcessReader(*arguments)),
        }
        if self._backend is not None:
            self._links = opened["links"] = _attempted("links", partial(self._open_links, self._backend))
        sources = {name: source for name, source in opened.items() if source}
        due = time.monotonic()
        last = False
        while sources and not last:
            last = self._closing.is_set()
            self._sample(sources)
            due = max(due + self._every_s, time.monotonic())  # a late sample is skipped
            if not last:
                self._closing.wait(due - time.monotonic())
        for name, source in sources.items():
            _attempted(name, source.close)

    def _open_links(self, backend: str) -> LinkReader:
        self._accumulated.expected_adapters = expected_adapters(backend, os.environ)
        return LinkReader(backend, self._accumulated.links)

    def _sample(self, sources: dict[str, _SampleReader]) -> None:
        """Take a sample of each source; remove a source that fails."""
        segment = self._segment()
        samples: list[GpuSample | HostSample | LinkSample] = []
        for name, source in list(sources.items()):
            taken = _attempted(name, partial(self._take, source, segment))
            if taken is None:
                _attempted(name, sources.pop(name).close)
            else:
                samples += taken
        self._live = _live(samples)
        self._live_at = time.monotonic()

    def _take_links(self) -> list[GpuSample | HostSample | LinkSample]:
        """Take a sample of the links, in the segment at this time."""
        assert self._links is not None
        with self._links_lock:
            return self._add(self._links, self._segment())

    def _take(self, source: _SampleReader, segment: int | None) -> list[GpuSample | HostSample | LinkSample]:
        return self._take_links() if source is self._links else self._add(source, segment)

    def _add(self, source: _SampleReader, segment: int | None) -> list[GpuSample | HostSample | LinkSample]:
        found = source.read()
        with self._lock:
            for accumulator, sample in found:
                accumulator.add(sample, segment)
        return [sample for _, sample in found]


class _SampleReader(Protocol):
    """The GPUs, the processes or the links of the node."""

    def read(self) -> Sequence[tuple[Accumulator[Any] | LinkAccumulator, Any]]:
        """Take and write one sample of each device."""

    def close(self) -> None: ...


def _attempted(source: str, call: Callable[[], T]) -> T | None:
    """The result of `call`. An exception is logged and gives None; the caller then drops `source`."""
    try:
        return call()
    except Exception as error:
        log.error("sampling ended", of=source, kind=type(error).__name__, error=str(error))
        return None


class _SampleFile:
    """A file of samples, written every `flush_every_s` seconds. Its rate of lines falls as it grows."""

    def __init__(self, path: Path, flush_every_s: float) -> None:
        self._file = JsonLinesWriter(path)
        self._flush_every_s = flush_every_s
        self._flushed = -math.inf
        self._rounds = 0
        self._written = 0

    def add(self, samples: Sequence[GpuSample] | Sequence[HostSample]) -> None:
        """Take one round: one sample of each device."""
        if self._rounds % 2 ** (self._written // LINES_AT_FULL_RATE) == 0:
            for sample in samples:
                self._file.add(dict(sample))
            self._written += 1
        self._rounds += 1
        if (now := time.monotonic()) - self._flushed >= self._flush_every_s:
            self._flushed = now
            self._file.flush()

    def close(self) -> None:
        self._file.close()


class _GpuReader:
    """The GPUs of the node. Opened in the thread, since a driver may take seconds to wake."""

    def __init__(
        self,
        attempt: Attempt,
        node: int,
        ranks: Sequence[LocalRank],
        into: NodeSamples,
        flush_every_s: float,
        every_s: float,
    ) -> None:
        self._path = attempt.gpu_devices(node)
        self._every_s = every_s
        self._into = into
        self._file: _SampleFile | None = None
        self._nvml: Nvml | None = None
        self._gpus: list[tuple[LocalRank, GpuReader, GpuAccumulator]] = []
        users: dict[GpuId, list[LocalRank]] = {}
        for rank in ranks:
            for gpu in (rank.gpu, *rank.other_gpus) if rank.gpu else ():
                users.setdefault(gpu, []).append(rank)
        if users:
            try:
                self._open(users)
            except Unavailable as error:
                into.gpu_reason = str(error)
                log.error("no GPU samples", reason=str(error))
        if self._gpus:
            self._file = _SampleFile(attempt.gpu_samples(node), flush_every_s)
            self._describe()

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._describe()
        if self._nvml:
            self._nvml.close()

    def read(self) -> list[tuple[GpuAccumulator, GpuSample]]:
        """Take and write one sample of each GPU that is not lost."""
        found = []
        for rank, reader, accumulator in self._gpus:
            if reader.lost:
                continue
            now, wall = time.monotonic(), time.time()
            try:
                readings = reader.read(now)
            except Exception as error:
                reader.device.errors.setdefault("sample", in_one_line(error))
                continue
            if reader.lost:
                accumulator.lost = True
                log.error("GPU lost", rank=rank.rank, reason=reader.device.lost or "")
                continue
            found.append((accumulator, GpuSample.model_construct(**_when(now, wall, rank), **readings)))
        if self._file and found:
            self._file.add([sample for _, sample in found])
        return found

    def _open(self, users: dict[GpuId, list[LocalRank]]) -> None:
        self._nvml = Nvml()
        reasons = []
        for gpu, ranks in users.items():
            try:
                reader = GpuReader(self._nvml, gpu, [r.rank for r in ranks])
            except Unavailable as error:
                reasons.append(str(error))
                continue
            except Exception as error:
                reasons.append(f"{gpu.uuid or gpu.pci_bus_id}: {in_one_line(error)}")
                continue
            constants = {"sm_clock_max_mhz": reader.device.sm_clock_max_mhz}
            accumulator = GpuAccumulator(constants, device=ranks[0].device_name(gpu))
            self._gpus.append((ranks[0], reader, accumulator))
            self._into.gpus.append(accumulator)
        if reasons:
            raise Unavailable("; ".join(reasons))

    def _describe(self) -> None:
        assert self._nvml is not None
        devices = NodeGpus(
            driver=self._nvml.driver,
            every_s=self._every_s,
            gpus=[reader.device for _, reader, _ in self._gpus],
        )
        write_json(self._path, devices.model_dump(mode="json"))


class _ProcessReader:
    """The processes of the node's ranks."""

    def __init__(
        self,
        attempt: Attempt,
        node: int,
        ranks: Sequence[LocalRank],
        into: NodeSamples,
        flush_every_s: float,
    ) -> None:
        readers = [(rank, ProcessReader(rank.pid)) for rank in ranks]
        self._processes = [
            (rank, reader, ProcessAccumulator(errors=reader.errors)) for rank, reader in readers
        ]
        self._processors = HostProcessors(usable_processors())
        into.hosts = [accumulator for _, _, accumulator in self._processes]
        self._file = _SampleFile(attempt.host_samples(node), flush_every_s)

    def read(self) -> list[tuple[ProcessAccumulator, HostSample]]:
        """Take and write one sample of each process."""
        of_host = host_memory() | {"host_cpu_percent": self._processors.percent()}
        found = []
        for rank, reader, accumulator in self._processes:
            when = _when(time.monotonic(), time.time(), rank)
            found.append((accumulator, HostSample.model_construct(**when, **reader.read(), **of_host)))
        self._file.add([sample for _, sample in found])
        return found

    def close(self) -> None:
        self._file.close()


def _when(now: float, wall: float, rank: LocalRank) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "rank": rank.rank,
        "at_s": round(now - rank.origin_s, 6),
        "time": round(wall, 3),
    }


def _live(samples: Sequence[GpuSample | HostSample | LinkSample]) -> dict[str, float]:
    """Means over the samples, by the names in `Progress`; a name without any value is left out."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for name, live_name in _LIVE.get(type(sample), {}).items():
            if (value := getattr(sample, name)) is not None:
                found.setdefault(live_name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


_LIVE: Mapping[type, dict[str, str]] = {
    sample: {each.name: each.live for each in fields if each.live}
    for sample, fields in ((GpuSample, GPU_FIELDS), (HostSample, PROCESS_FIELDS))
}
"""Names in `Progress` by the name in the sample."""
