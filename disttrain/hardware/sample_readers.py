"""Readers of the GPUs and the processes of a node's ranks: take a sample of each, and write it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from disttrain.errors import in_one_line
from disttrain.hardware.aggregation import Accumulator, GpuAccumulator, ProcessAccumulator
from disttrain.hardware.gpu_reader import GpuId, GpuReader, Nvml, Unavailable
from disttrain.hardware.host import HostProcessors, ProcessReader, host_memory
from disttrain.hardware.link_counters import LinkAccumulator
from disttrain.hardware.node_samples import LocalRank, NodeSamples
from disttrain.hardware.sample_file import SampleFile
from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.hardware import GpuSample, HostSample, NodeGpus
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log
from disttrain.runtime.device import usable_processors


class SampleReader(Protocol):
    """The GPUs, the processes or the links of the node."""

    def read(self) -> Sequence[tuple[Accumulator[Any] | LinkAccumulator, Any]]:
        """Take and write one sample of each device."""

    def close(self) -> None: ...


class GpuSampleReader:
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
        self._file: SampleFile | None = None
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
            self._file = SampleFile(attempt.gpu_samples(node), flush_every_s)
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


class ProcessSampleReader:
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
        self._file = SampleFile(attempt.host_samples(node), flush_every_s)

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
