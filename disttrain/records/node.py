"""Hardware and software of a node."""

from __future__ import annotations

from disttrain.records.base import Record


class Interface(Record):
    """A network interface that is up; the loopback interface is not recorded."""

    name: str
    speed_mbit: int | None = None
    """Null where the driver does not report it, as for most virtual interfaces."""
    driver: str | None = None


class Fabric(Record):
    """An RDMA device: InfiniBand, RoCE, EFA."""

    name: str
    port: int
    link_layer: str | None = None
    """`InfiniBand` or `Ethernet`."""
    state: str | None = None
    rate: str | None = None
    """As printed by the driver."""
    firmware: str | None = None
    driver: str | None = None


class Gpu(Record):
    """A GPU as `nvidia-smi` lists it."""

    name: str
    memory_bytes: int
    pci_id: str
    uuid: str


class NodeRecord(Record):
    """`attempts/NNN/node-NN.json`: hardware and software of a node at the start of an attempt.

    Fields that could not be read are null or empty.
    """

    node: int
    """Node rank in the job."""
    host: str
    taken: str
    kernel: str | None = None
    processor: str | None = None
    """Processor model as the kernel names it."""
    processors_usable: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """Memory limit of the job's control group; null without one."""
    interfaces: list[Interface] = []
    fabrics: list[Fabric] = []
    driver: str | None = None
    """Version of the NVIDIA driver; null without one."""
    gpus: list[Gpu] = []
    """GPUs that this job may use."""
    packages: dict[str, str] = {}
    """Installed versions of torch, NCCL, CUDA and cuDNN."""
    slurm: dict[str, str] = {}
    """Slurm's environment variables of the job, secrets masked."""
    scontrol: str | None = None
    """Output of `scontrol show job -d`, secrets masked; on node 0 of a Slurm job."""
