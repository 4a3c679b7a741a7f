"""One thread per node that samples the GPUs, processes and links of the node's ranks beside their work.

The thread never delays a step: NVML calls release the interpreter's lock, and the thread shares one number
with the loop. A reading that fails loses its own value, a GPU that cannot be read its own sample. Any other
error ends the samples of the GPUs, those of the processes or those of the links, and never the training.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from disttrain.errors import in_one_line
from disttrain.hardware.fields import FIELDS, Field
from disttrain.hardware.link_counters import expected_adapters, find_links, read_links
from disttrain.hardware.readings import GpuId, Nvml, Readings, Unavailable
from disttrain.hardware.sample_file import SampleFile
from disttrain.hardware.statistics import DeviceSamples
from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.hardware import GpuDevice, NodeGpus
from disttrain.records.json_files import write_json
from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log

T = TypeVar("T")
CLOSE_S = 5.0
"""Seconds that the end of a run waits for a call into the driver: a lost GPU may never answer."""
Sample = Mapping[str, Any]


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
        """The names of the rank's devices, its own first."""
        return [self.device_name(gpu) for gpu in self.gpus] or [f"rank {self.rank}"]

    def device_name(self, gpu: GpuId) -> str:
        """The GPU's name within the run, equal for ranks that share it, also across nodes: one machine may
        stand for several nodes."""
        return gpu.uuid or f"{gpu.pci_bus_id} of node {self.node}"

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
    samples: NodeSamples = field(default_factory=NodeSamples)

    @property
    def number(self) -> int:
        return self.ranks[0].node

    def rows(self, *of: str) -> list[Field]:
        return [row for row in self.fields if row.of in of]


class Source:
    """The GPUs, the processes or the links of the node. Opened in the thread, since a driver may take seconds
    to wake."""

    fields: Sequence[Field]
    file: SampleFile | None = None

    def read(self) -> list[tuple[DeviceSamples, Sample]]:
        """Take one sample of each device."""
        raise NotImplementedError

    def close(self) -> None:
        if self.file:
            self.file.close()


class Gpus(Source):
    """The GPUs of the node."""

    def __init__(self, node: Node) -> None:
        self.fields = node.rows("gpu")
        self._node = node
        self._nvml: Nvml | None = None
        self._gpus: list[tuple[GpuId, list[LocalRank], Readings]] = []
        users: dict[GpuId, list[LocalRank]] = {}
        for rank in node.ranks:
            for gpu in rank.gpus:
                users.setdefault(gpu, []).append(rank)
        reasons = [] if users else ["no rank has a GPU"]
        for gpu, ranks in users.items():
            try:
                self._nvml = self._nvml or Nvml()
                name = ranks[0].device_name(gpu)
                readings = Readings(self.fields, self._nvml.api, self._nvml.find(gpu), name)
                self._gpus.append((gpu, ranks, readings))
            except Unavailable as error:
                reasons.append(str(error))
            except Exception as error:
                reasons.append(f"{gpu.uuid or gpu.pci_bus_id}: {in_one_line(error)}")
        node.samples.gpus = [readings.samples for *_, readings in self._gpus]
        node.samples.gpu_reason = "; ".join(dict.fromkeys(reasons)) or None
        if users and reasons:
            log.error("no GPU samples", reason=node.samples.gpu_reason or "")
        if self._gpus:
            self.file = SampleFile(node.attempt.gpu_samples(node.number), node.flush_every_s)
            self._describe()

    def read(self) -> list[tuple[DeviceSamples, Sample]]:
        taken = []
        for _, ranks, readings in self._gpus:
            if readings.samples.lost is None:
                sample = ranks[0].stamped(readings.read(time.monotonic()))
                if readings.samples.lost is None:
                    taken.append((readings.samples, sample))
                else:
                    log.error("GPU lost", rank=ranks[0].rank, reason=readings.samples.lost)
        return taken

    def close(self) -> None:
        super().close()
        if self.file:
            self._describe()
        if self._nvml:
            self._nvml.close()

    def _describe(self) -> None:
        devices = [
            GpuDevice(
                ranks=[rank.rank for rank in ranks],
                uuid=gpu.uuid,
                pci_bus_id=gpu.pci_bus_id,
                **readings.samples.constants,
                pcie_method=readings.slow_method,
                unsupported=readings.samples.unsupported,
                errors=readings.samples.errors,
                lost=readings.samples.lost,
            )
            for gpu, ranks, readings in self._gpus
        ]
        driver = self._nvml.driver if self._nvml else None
        record = NodeGpus(driver=driver, every_s=self._node.every_s, gpus=devices)
        write_json(self._node.attempt.gpu_devices(self._node.number), record.model_dump(mode="json"))


class Processes(Source):
    """The processes of the node's ranks, each with the values of the host."""

    def __init__(self, node: Node) -> None:
        self.fields = node.rows("process", "host")
        self._host = Readings(node.rows("host"), psutil, usable_processors())
        rows = node.rows("process")
        self._ranks: list[tuple[LocalRank, Readings]] = []
        processes = []
        for rank in node.ranks:
            try:
                readings = Readings(rows, psutil, psutil.Process(rank.pid))
                self._ranks.append((rank, readings))
                processes.append(readings.samples)
            except Exception as error:  # a process that ended or is hidden
                reason = in_one_line(error)
                log.error("no samples of a process", rank=rank.rank, reason=reason)
                processes.append(DeviceSamples(errors={row.name: reason for row in rows}))
        node.samples.processes = processes
        self.file = SampleFile(node.attempt.host_samples(node.number), node.flush_every_s)

    def read(self) -> list[tuple[DeviceSamples, Sample]]:
        of_host = self._host.read(time.monotonic())
        return [
            (readings.samples, rank.stamped({**readings.read(time.monotonic()), **of_host}))
            for rank, readings in self._ranks
        ]


class Links(Source):
    """The links of the node."""

    fields = tuple(row for row in FIELDS if row.of == "link")

    def __init__(self, backend: str, into: NodeSamples, root: Path = Path("/")) -> None:
        self._root = root
        self._links = find_links(backend, os.environ, root)
        self._devices = [DeviceSamples(link.name, link.constants) for link in self._links]
        into.expected_adapters = expected_adapters(backend, os.environ, root)
        into.links = self._devices

    def read(self) -> list[tuple[DeviceSamples, Sample]]:
        """One sample of each link that can be read."""
        at_s, counters = time.monotonic(), read_links(self._links, self._root)
        devices = [device for device in self._devices if device.name in counters]
        return [(device, {"at_s": at_s, **counters[device.name]}) for device in devices]


class HardwareSampler:
    """Samples from `start` to `close`.

    `segment` gives the segment of measured steps that the loop is in (`disttrain.hardware.statistics`).
    `backend` is that of the processes of several nodes, whose links are sampled, too; None: no link is.
    """

    def __init__(self, node: Node, segment: Callable[[], int | None], backend: str | None = None) -> None:
        self._node = node
        self._segment = segment
        self._backend = backend
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._links: Links | None = None
        self._links_lock = threading.Lock()  # held from a reading of the links until it is added
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
        links = self._links
        if links is not None and not any(link.clock.segment_growth for link in self._node.samples.links):
            _attempted("links", lambda: self._take(links))

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
        opened: dict[str, Source | None] = {
            "GPUs": _attempted("GPUs", lambda: Gpus(self._node)),
            "processes": _attempted("processes", lambda: Processes(self._node)),
        }
        if backend := self._backend:
            self._links = _attempted("links", lambda: Links(backend, self._node.samples))
            opened["links"] = self._links
        sources = {name: source for name, source in opened.items() if source}
        due = time.monotonic()
        last = False
        while sources and not last:
            last = self._closing.is_set()
            self._sample(sources)
            due = max(due + self._node.every_s, time.monotonic())  # a late sample is skipped
            if not last:
                self._closing.wait(due - time.monotonic())
        for name, source in sources.items():
            _attempted(name, source.close)

    def _sample(self, sources: dict[str, Source]) -> None:
        """Take a sample of each source; remove a source that fails."""
        live: dict[str, list[float]] = {}
        for name, source in list(sources.items()):
            taken = _attempted(name, lambda source=source: self._take(source))  # type: ignore[misc]
            if taken is None:
                _attempted(name, sources.pop(name).close)
            for row in source.fields:
                own = [sample.get(row.name) for sample in taken or ()]
                values = [value for value in own if isinstance(value, int | float)]
                if row.live and values:
                    live[row.live] = values
        self._live = {name: sum(values) / len(values) for name, values in live.items()}
        self._live_at = time.monotonic()

    def _take(self, source: Source) -> list[Sample]:
        """Take a sample of a source, in the segment at this time, and write it."""
        with self._links_lock if source is self._links else nullcontext():
            segment, taken = self._segment(), source.read()
            with self._lock:
                for device, sample in taken:
                    device.add(source.fields, sample, segment)
        samples = [sample for _, sample in taken]
        if source.file and samples:
            source.file.add(samples)
        return samples


def _attempted(source: str, call: Callable[[], T]) -> T | None:
    """The result of `call`. An exception is logged and gives None; the caller then drops `source`."""
    try:
        return call()
    except Exception as error:
        log.error("sampling ended", of=source, kind=type(error).__name__, error=str(error))
        return None
