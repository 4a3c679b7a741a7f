"""One thread per node that samples the GPUs, processes and links of the node's ranks beside their work.

The thread never delays a step: NVML calls release the interpreter's lock, and the thread shares one number
with the loop. A reading that fails loses its own value, a GPU that cannot be read its own sample. Any other
error ends the samples of the GPUs, those of the processes or those of the links, and never the training.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import psutil

from disttrain.errors import in_one_line
from disttrain.hardware.fields import FIELDS, Field
from disttrain.hardware.links import find_links
from disttrain.hardware.readings import Readings
from disttrain.hardware.statistics import DeviceSamples
from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.hardware import GpuDevice, NodeGpus
from disttrain.records.json_files import write_json
from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.json_lines import JsonLinesWriter

T = TypeVar("T")
CLOSE_S = 5.0
"""Seconds that the end of a run waits for a call into the driver: a lost GPU may never answer."""
LINES_AT_FULL_RATE = 20_000
"""Samples of a device written at the full rate; then every 2nd, after as many lines every 4th, and so on: a
year at one sample per second is 200,000 lines. The figures take every sample."""
Sample = Mapping[str, Any]


class SampleFile(JsonLinesWriter):
    """A file of samples, written every `flush_every_s` seconds. Its rate of lines falls as it grows."""

    def __init__(self, path: Path, flush_every_s: float) -> None:
        super().__init__(path)
        self._flush_every_s = flush_every_s
        self._flushed = -math.inf
        self._rounds = 0
        self._written = 0

    def add_round(self, samples: Sequence[Sample]) -> None:
        """Take one sample of each device."""
        if self._rounds % 2 ** (self._written // LINES_AT_FULL_RATE) == 0:
            for sample in samples:
                self.add(sample)
            self._written += 1
        self._rounds += 1
        if (now := time.monotonic()) - self._flushed >= self._flush_every_s:
            self._flushed = now
            self.flush()


@dataclass(frozen=True)
class GpuId:
    """A GPU in NVML's spelling. Never its index: torch and NVML number GPUs differently once
    CUDA_VISIBLE_DEVICES or a container hides some."""

    uuid: str
    pci_bus_id: str | None

    def handle(self, api: Any) -> Any:
        """Its handle in pynvml. Raises `NVMLError` where NVML does not list the GPU."""
        try:
            return api.nvmlDeviceGetHandleByUUID(self.uuid)
        except api.NVMLError:
            return api.nvmlDeviceGetHandleByPciBusId(self.pci_bus_id)


@dataclass(frozen=True)
class LocalRank:
    """A rank of this node, as the sampler needs it."""

    rank: int
    node: int
    pid: int
    gpus: tuple[GpuId, ...]
    """Its own first, then others that a rank of DataParallel computes on; empty on a CPU."""
    origin_s: float
    """The monotonic clock when the rank's loop began; all processes of a host share that clock."""

    @property
    def devices(self) -> list[str]:
        """Names of the rank's devices within the run, its own first. Ranks that share a GPU name it alike,
        also across nodes: one machine may stand for several nodes."""
        return [gpu.uuid for gpu in self.gpus] or [f"rank {self.rank}"]

    def stamped(self, values: Sample) -> Sample:
        """A sample of these values, taken now."""
        at_s, when = round(time.monotonic() - self.origin_s, 6), round(time.time(), 3)
        return {"schema_version": SCHEMA_VERSION, "rank": self.rank, "at_s": at_s, "time": when, **values}


@dataclass
class NodeSamples:
    """The samples of one node so far, sent to rank 0."""

    gpus: list[DeviceSamples] = field(default_factory=list)
    processes: list[DeviceSamples] = field(default_factory=list)
    links: list[DeviceSamples] = field(default_factory=list)
    gpu_reason: str | None = None
    """The reason why there are no GPU samples."""
    expected_adapters: list[str] | None = None
    """Ports that NCCL should use, also those without a counter; None where links are not sampled."""


@dataclass(frozen=True)
class Node:
    """What is sampled on a node."""

    attempt: Attempt
    ranks: Sequence[LocalRank]
    every_s: float
    """Seconds between samples."""
    flush_every_s: float = 0.0
    """Seconds between writes of the files."""
    fields: Sequence[Field] = FIELDS
    backend: str | None = None
    """That of processes on several nodes, whose links are sampled, too; None: no link is."""
    samples: NodeSamples = field(default_factory=NodeSamples)

    @property
    def number(self) -> int:
        return self.ranks[0].node

    def rows(self, *of: str) -> list[Field]:
        return [row for row in self.fields if row.of in of]


class Source:
    """The GPUs, the processes or the links of the node. Opened in the thread, since a driver may take seconds
    to wake."""

    file: SampleFile | None = None
    host: Readings | None = None
    """Readings that belong to each sample of the source."""

    def __init__(self, node: Node, *of: str) -> None:
        self.node = node
        self.fields = node.rows(*of)
        self.devices: list[tuple[LocalRank, Readings]] = []
        self.lock = threading.Lock()  # held from a reading until it is added

    def read(self) -> list[tuple[DeviceSamples, Sample]]:
        """Take one sample of each device that is not lost."""
        of_host = self.host.read(time.monotonic()) if self.host else {}
        taken = []
        for rank, readings in self.devices:
            if readings.samples.lost is None:
                sample = rank.stamped({**readings.read(time.monotonic()), **of_host})
                if readings.samples.lost is None:
                    taken.append((readings.samples, sample))
                else:
                    log.error("GPU lost", rank=rank.rank, reason=readings.samples.lost)
        return taken

    def close(self) -> None:
        if self.file:
            self.file.close()


class Gpus(Source):
    """The GPUs of the node: the only user of pynvml."""

    def __init__(self, node: Node) -> None:
        import pynvml

        super().__init__(node, "gpu")
        self._users: list[dict[str, Any]] = []
        problems: dict[str, str] = {}  # each once, with the first GPU
        for gpu in dict.fromkeys(gpu for rank in node.ranks for gpu in rank.gpus):
            ranks = [rank for rank in node.ranks if gpu in rank.gpus]
            try:
                pynvml.nvmlInit()  # NVML is open already for all but the first
                readings = Readings(self.fields, pynvml, gpu.handle(pynvml), gpu.uuid)
            except Exception as error:
                problems.setdefault(in_one_line(error), gpu.uuid)
            else:
                self.devices.append((ranks[0], readings))
                self._users.append({"ranks": [rank.rank for rank in ranks], **vars(gpu)})
        reason = "; ".join(f"{name}: {problem}" for problem, name in problems.items())
        if reason:
            log.error("no GPU samples", reason=reason)
        elif not self.devices:
            reason = "no rank has a GPU"
        node.samples.gpus = [readings.samples for _, readings in self.devices]
        node.samples.gpu_reason = reason or None
        if self.devices:
            self._driver = _attempted("the driver's version", pynvml.nvmlSystemGetDriverVersion)
            self.file = SampleFile(node.attempt.gpu_samples(node.number), node.flush_every_s)
            self._describe()

    def close(self) -> None:
        super().close()
        if self.devices:
            self._describe()

    def _describe(self) -> None:
        devices = [
            GpuDevice(
                **user,
                **readings.samples.constants,
                pcie_method=readings.slow_method,
                unsupported=readings.samples.unsupported,
                errors=readings.samples.errors,
                lost=readings.samples.lost,
            )
            for user, (_, readings) in zip(self._users, self.devices, strict=True)
        ]
        record = NodeGpus(driver=self._driver, every_s=self.node.every_s, gpus=devices)
        write_json(self.node.attempt.gpu_devices(self.node.number), record)


class Processes(Source):
    """The processes of the node's ranks, each with the values of the host."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, "process", "host")
        self.host = Readings(node.rows("host"), psutil, usable_processors())
        rows = node.rows("process")
        for rank in node.ranks:  # a process may have ended, or be hidden
            if process := _attempted(f"rank {rank.rank}", psutil.Process, rank.pid):
                self.devices.append((rank, Readings(rows, psutil, process)))
        node.samples.processes = [readings.samples for _, readings in self.devices]
        self.file = SampleFile(node.attempt.host_samples(node.number), node.flush_every_s)


class Links(Source):
    """The links of the node."""

    def __init__(self, node: Node, root: Path = Path("/")) -> None:
        super().__init__(node, "link")
        links, node.samples.expected_adapters = find_links(node.backend, os.environ, root)
        self.devices = [(node.ranks[0], Readings(self.fields, None, link, link.name)) for link in links]
        node.samples.links = [readings.samples for _, readings in self.devices]


class HardwareSampler:
    """Samples from `start` to `close`. `segment` gives the segment of measured steps that the loop is in
    (`disttrain.hardware.statistics`)."""

    def __init__(self, node: Node, segment: Callable[[], int | None]) -> None:
        self._node = node
        self._segment = segment
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()  # held while samples are added, never during a call into the driver
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
        links = self._sources.get("links")
        if links and not any(link.clock.segment_growth for link in self._node.samples.links):
            _attempted("links", self._take, links)

    def accumulated(self) -> NodeSamples:
        """A copy of the samples so far."""
        with self._lock:
            return copy.deepcopy(self._node.samples)

    def live(self) -> dict[str, float]:
        """Means of the newest samples over the node's GPUs and ranks, by their names in `Progress`; empty
        where the newest samples are old."""
        fresh = time.monotonic() - self._live_at < 5 * self._node.every_s + CLOSE_S
        return self._live if fresh else {}

    def _run(self) -> None:
        kinds: dict[str, Callable[[Node], Source]] = {"GPUs": Gpus, "processes": Processes}
        if self._node.backend:
            kinds["links"] = Links
        for name, kind in kinds.items():
            if source := _attempted(name, kind, self._node):
                self._sources[name] = source
        due = time.monotonic()
        last = False
        while self._sources and not last:
            last = self._closing.is_set()
            self._sample()
            due = max(due + self._node.every_s, time.monotonic())  # a late sample is skipped
            if not last:
                self._closing.wait(due - time.monotonic())
        for name, source in self._sources.items():
            _attempted(name, source.close)

    def _sample(self) -> None:
        """Take a sample of each source; remove a source that fails."""
        live: dict[str, float] = {}
        for name, source in list(self._sources.items()):
            taken = _attempted(name, self._take, source)
            if taken is None:
                _attempted(name, self._sources.pop(name).close)
            for row in source.fields:
                newest = [sample.get(row.name) for sample in taken or ()]
                values = [value for value in newest if isinstance(value, int | float)]
                if row.live and values:
                    live[row.live] = fmean(values)
        self._live, self._live_at = live, time.monotonic()

    def _take(self, source: Source) -> list[Sample]:
        """Take a sample of a source, in the segment at this time, and write it."""
        with source.lock:
            segment, taken = self._segment(), source.read()
            with self._lock:
                for device, sample in taken:
                    device.add(source.fields, sample, segment)
        samples = [sample for _, sample in taken]
        if source.file and samples:
            source.file.add_round(samples)
        return samples


def _attempted(source: str, call: Callable[..., T], *arguments: Any) -> T | None:
    """The result of `call`. An exception is logged and gives None; the caller then drops `source`."""
    try:
        return call(*arguments)
    except Exception as error:
        log.error("sampling ended", of=source, kind=type(error).__name__, error=str(error))
        return None
