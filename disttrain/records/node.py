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
    """A port of a network adapter: InfiniBand, RoCE, EFA, Slingshot."""

    name: str
    port: int
    link_layer: str | None = None
    """`InfiniBand` or `Ethernet`."""
    state: str | None = None
    rate: str | None = None
    """As printed by the driver."""
    firmware: str | None = None
    driver: str | None = None
    for_compute: bool | None = None
    """Whether the adapter was chosen for the traffic of training; null in older records."""
    reason: str | None = None
    """Reason of the choice."""


class CommunicationLibraries(Record):
    """Libraries and limits that communication between nodes depends on."""

    nccl: str | None = None
    """Version of NCCL."""
    nccl_path: str | None = None
    """Library or Python package that the version is from."""
    nccl_plugins: list[str] = []
    """Libraries that NCCL can load by name; those outside the path of libraries are left out."""
    nccl_files: dict[str, dict[str, str]] = {}
    """Variables in files that NCCL reads besides the environment, by path, in the order of NCCL."""
    aws_ofi_nccl: str | None = None
    libfabric: str | None = None
    memory_lock: str | None = None
    """Limit of locked memory: `unlimited`, also for a process with CAP_IPC_LOCK, or bytes."""


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
    fabric_kind: str | None = None
    """`infiniband`, `roce`, `efa`, `slingshot`, `ethernet` or `none`; null in older records."""
    gpu_paths: dict[str, int] = {}
    """Number of pairs of GPUs by the path between them, as `nvidia-smi topo -m` names it: `NV18`, `PIX`."""
    product: str | None = None
    """Vendor and product of the machine."""
    communication: CommunicationLibraries | None = None
    packages: dict[str, str] = {}
    """Installed versions of torch, NCCL, CUDA and cuDNN."""
    slurm: dict[str, str] = {}
    """Slurm's environment variables of the job, secrets masked."""
    scontrol: str | None = None
    """Output of `scontrol show job -d`, secrets masked; on node 0 of a Slurm job."""
