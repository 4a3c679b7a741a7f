"""What a node is made of."""

from __future__ import annotations

from disttrain.records.base import Record


class Interface(Record):
    """A network interface that is up, loopback aside."""

    name: str
    speed_mbit: int | None = None
    """Null where the driver does not say, as of most virtual ones."""
    driver: str | None = None


class Fabric(Record):
    """A device for remote memory access: InfiniBand, RoCE, EFA."""

    name: str
    port: int
    link_layer: str | None = None
    """`InfiniBand` or `Ethernet`."""
    state: str | None = None
    rate: str | None = None
    """As the driver prints it."""
    firmware: str | None = None
    driver: str | None = None


class Gpu(Record):
    name: str
    memory_bytes: int
    pci_id: str
    uuid: str


class NodeRecord(Record):
    """`attempts/NNN/node-NN.json`: what a node was made of when an attempt started on it. What could not be
    found out is null or empty."""

    node: int
    """Its rank in the job."""
    host: str
    taken: str
    kernel: str | None = None
    processor: str | None = None
    """Its model, as the kernel names it."""
    processors_usable: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """Of the job's control group; null where there is none."""
    interfaces: list[Interface] = []
    fabrics: list[Fabric] = []
    driver: str | None = None
    """NVIDIA driver; null without one."""
    gpus: list[Gpu] = []
    """Those that this job may use."""
    packages: dict[str, str] = {}
    """Versions of torch and what it brings for the GPU, as installed: NCCL, CUDA, cuDNN."""
    slurm: dict[str, str] = {}
    """The variables by which Slurm describes the job, secrets masked."""
    scontrol: str | None = None
    """`scontrol show job -d`, masked; on node 0 of a Slurm job."""
