"""Samples of the GPUs and processes of one node's ranks, by one light thread beside the training loop.

The thread sleeps, asks, appends lines, and never touches the step: NVML is called without the interpreter's
lock, and all that is shared with the loop is a number the loop keeps anyway. A reading that fails costs its
own value (`gpu`, `host`), a GPU that cannot be read its own sample. Whatever else goes wrong ends the samples
of the GPUs or those of the processes, never both, and never the training.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from disttrain.errors import in_one_line
from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.hardware import GpuSample, HostSample, NodeGpus
from disttrain.records.json_files import to_json, write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.telemetry.hardware.aggregation import GpuAccumulator, ProcessAccumulator
from disttrain.telemetry.hardware.host import ProcessReader, host_memory
from disttrain.telemetry.hardware.nvml import GpuId, GpuReader, Nvml, Unavailable
from disttrain.telemetry.json_lines import JsonLinesWriter

T = TypeVar("T")
LINES_AT_FULL_RATE = 20_000
"""Samples of a GPU or process that are written as they come; then every 2nd, after as many lines every 4th,
and so on: a year at one second is 200,000 lines. The figures take every sample."""
CLOSE_S = 5.0
"""How long the end of a run waits for a call into the driver: a GPU that is gone may never answer."""


@dataclass(frozen=True)
class LocalRank:
    """What a sampler needs of each rank on its node."""

    rank: int
    node: int
    pid: int
    gpu: GpuId | None
    origin_s: float
    """The monotonic clock when the rank's loop began; one clock for all processes of a host."""

    @property
    def device(self) -> str:
        """Names what it computes on, the same for all ranks there, be they of several nodes: one machine may
        stand for those."""
        if self.gpu is None:
            return f"rank {self.rank}"
        return self.gpu.uuid or f"{self.gpu.pci_bus_id} of node {self.node}"


@dataclass
class NodeSamples:
    """What one node's samples add up to; travels to rank 0."""

    gpus: list[GpuAccumulator] = field(default_factory=list)
    hosts: list[ProcessAccumulator] = field(default_factory=list)
    gpu_reason: str | None = None
    """Why there are no GPU samples."""


class HardwareSampler:
    """Samples every `every_s` seconds from `start` to `close`.

    `segment` tells which segment of measured steps the loop is in (see `telemetry.hardware.aggregation`).
    """

    def __init__(
        self,
        attempt: Attempt,
        ranks: Sequence[LocalRank],
        every_s: float,
        segment: Callable[[], int | None],
    ) -> None:
        self._attempt = attempt
        self._ranks = ranks
        self._node = ranks[0].node
        self._every_s = every_s
        self._segment = segment
        self._asked_to_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._usage = NodeSamples(gpu_reason=None if any(r.gpu for r in ranks) else "no rank has a GPU")
        self._lock = threading.Lock()  # held while tallies grow, never while the driver is asked
        self._live: dict[str, float] = {}
        self._live_at = 0.0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take a last sample and end, but wait no longer than `CLOSE_S` for it."""
        self._asked_to_end.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def usage(self) -> NodeSamples:
        """What the samples so far add up to."""
        with self._lock:
            return copy.deepcopy(self._usage)

    def live(self) -> dict[str, float]:
        """The newest figures: means over the node's GPUs and ranks, by their names in `Progress`; empty when
        they are old."""
        fresh = time.monotonic() - self._live_at < 5 * self._every_s + CLOSE_S
        return self._live if fresh else {}

    def _run(self) -> None:
        what = (self._attempt, self._node, self._ranks, self._usage)
        opened: dict[str, _Part | None] = {
            "GPUs": _attempted("GPUs", lambda: _Gpus(*what, self._every_s)),
            "processes": _attempted("processes", lambda: _Hosts(*what)),
        }
        parts = {name: part for name, part in opened.items() if part}
        due = time.monotonic()
        ending = False
        while parts and not ending:
            ending = self._asked_to_end.is_set()  # then this sample is the last
            self._sample(parts)
            due = max(due + self._every_s, time.monotonic())  # one that is late is left out
            if not ending:
                self._asked_to_end.wait(due - time.monotonic())
        for name, part in parts.items():
            _attempted(name, part.close)

    def _sample(self, parts: dict[str, _Part]) -> None:
        """Take a sample of each of `parts`, and leave out from now on what goes wrong."""
        segment = self._segment()
        samples: list[GpuSample | HostSample] = []
        for name, part in list(parts.items()):
            taken = _attempted(name, partial(self._take, part, segment))
            if taken is None:
                _attempted(name, parts.pop(name).close)
            else:
                samples += taken
        self._live = _live(samples)
        self._live_at = time.monotonic()

    def _take(self, part: _Part, segment: int | None) -> list[GpuSample | HostSample]:
        found = part.read()
        with self._lock:
            for tally, sample in found:
                tally.add(sample, segment)
        return [sample for _, sample in found]


class _Tally(Protocol):
    def add(self, sample: Any, segment: int | None) -> None: ...


class _Part(Protocol):
    """What is sampled together."""

    def read(self) -> Sequence[tuple[_Tally, GpuSample | HostSample]]:
        """One sample of each thing, written."""

    def close(self) -> None: ...


def _attempted(part: str, act: Callable[[], T]) -> T | None:
    """What `act` gives; None, with a line in the log, where it raises: `part` is sampled no more."""
    try:
        return act()
    except Exception as error:
        log.error("sampling ended", of=part, kind=type(error).__name__, error=str(error))
        return None


class _Lines:
    """A file of samples that grows ever more slowly."""

    def __init__(self, path: Path) -> None:
        self._file = JsonLinesWriter(path)
        self._rounds = 0
        self._written = 0

    def add(self, samples: Sequence[GpuSample] | Sequence[HostSample]) -> None:
        """Take one round of samples, one of each thing that is sampled."""
        if self._rounds % 2 ** (self._written // LINES_AT_FULL_RATE) == 0:
            for sample in samples:
                self._file.add(to_json(dict(sample)))
            self._file.flush()
            self._written += 1
        self._rounds += 1

    def close(self) -> None:
        self._file.close()


class _Gpus:
    """The GPUs of the node: opened in the thread, since a driver can take seconds to wake."""

    def __init__(
        self, attempt: Attempt, node: int, ranks: Sequence[LocalRank], usage: NodeSamples, every_s: float
    ) -> None:
        self._path = attempt.gpu_devices(node)
        self._every_s = every_s
        self._usage = usage
        self._lines: _Lines | None = None
        self._nvml: Nvml | None = None
        self._readers: list[tuple[LocalRank, GpuReader, GpuAccumulator]] = []
        users: dict[GpuId, list[LocalRank]] = {}
        for rank in ranks:
            if rank.gpu:
                users.setdefault(rank.gpu, []).append(rank)
        if users:
            try:
                self._open(users)
            except Unavailable as error:
                usage.gpu_reason = str(error)
                log.error("no GPU samples", reason=str(error))
        if self._readers:
            self._lines = _Lines(attempt.gpu_samples(node))
            self._describe()

    def close(self) -> None:
        if self._lines:
            self._lines.close()
            self._describe()
        if self._nvml:
            self._nvml.close()

    def read(self) -> list[tuple[GpuAccumulator, GpuSample]]:
        """One sample of each GPU that is still there, written."""
        found = []
        for rank, reader, tally in self._readers:
            if reader.lost:
                continue
            now, wall = time.monotonic(), time.time()
            try:
                told = reader.read(now)
            except Exception as error:
                reader.device.errors.setdefault("sample", in_one_line(error))
                continue
            if reader.lost:
                tally.lost = True
                log.error("GPU lost", rank=rank.rank, said=reader.device.lost or "")
                continue
            sample = GpuSample.model_construct(**_when(now, wall, rank), **told)
            found.append((tally, sample))
        if self._lines and found:
            self._lines.add([sample for _, sample in found])
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
            tally = GpuAccumulator(ranks[0].device, reader.device.sm_clock_max_mhz)
            self._readers.append((ranks[0], reader, tally))
            self._usage.gpus.append(tally)
        if reasons:
            raise Unavailable("; ".join(reasons))

    def _describe(self) -> None:
        assert self._nvml is not None
        devices = NodeGpus(
            driver=self._nvml.driver,
            every_s=self._every_s,
            gpus=[reader.device for _, reader, _ in self._readers],
        )
        write_json(self._path, devices.model_dump(mode="json"))


class _Hosts:
    """The processes of the node's ranks."""

    def __init__(self, attempt: Attempt, node: int, ranks: Sequence[LocalRank], usage: NodeSamples) -> None:
        readers = [(rank, ProcessReader(rank.pid)) for rank in ranks]
        self._readers = [(rank, reader, ProcessAccumulator(reader.errors)) for rank, reader in readers]
        usage.hosts = [tally for _, _, tally in self._readers]
        self._lines = _Lines(attempt.host_samples(node))

    def read(self) -> list[tuple[ProcessAccumulator, HostSample]]:
        """One sample of each process, written."""
        memory = host_memory()
        found = []
        for rank, reader, tally in self._readers:
            when = _when(time.monotonic(), time.time(), rank)
            found.append((tally, HostSample.model_construct(**when, **reader.read(), **memory)))
        self._lines.add([sample for _, sample in found])
        return found

    def close(self) -> None:
        self._lines.close()


def _when(now: float, wall: float, rank: LocalRank) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "rank": rank.rank,
        "at_s": round(now - rank.origin_s, 6),
        "time": round(wall, 3),
    }


def _live(samples: Sequence[GpuSample | HostSample]) -> dict[str, float]:
    """Means of what is there, by the names in `Progress`; a name without any value is left out."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for name, live_name in _LIVE[type(sample)].items():
            if (value := getattr(sample, name)) is not None:
                found.setdefault(live_name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


_LIVE: dict[type, dict[str, str]] = {
    GpuSample: {
        "utilization": "gpu_utilization",
        "memory_used_bytes": "gpu_memory_used_bytes",
        "power_w": "gpu_power_w",
    },
    HostSample: {"cpu_percent": "cpu_percent", "rss_bytes": "rss_bytes"},
}
