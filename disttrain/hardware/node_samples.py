"""The ranks of a node, and the hardware samples accumulated there."""

from __future__ import annotations

from dataclasses import dataclass, field

from disttrain.hardware.aggregation import GpuAccumulator, ProcessAccumulator
from disttrain.hardware.gpu_reader import GpuId
from disttrain.hardware.link_counters import LinkAccumulator
from disttrain.records.fabric import NcclLog


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
