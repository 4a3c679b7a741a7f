"""Records of the nodes of an attempt: hardware and software, and the checks before the ranks start."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Part, Record


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
    """Whether the adapter was chosen for the traffic of training."""
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
    """`infiniband`, `roce`, `efa`, `slingshot`, `ethernet` or `none`."""
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


class PreflightProblem(Part):
    """One finding of a check."""

    check: str
    """`agreement`, `clock`, `gpus`, `gpu_health`, `processors`, `affinity`, `memory_lock`, `defects`,
    `shared_folder`, `free_space`, `excluded`, `storage_rate`, `links` or `all_reduce`."""
    severity: Literal["error", "warning"]
    """The run does not start after an error."""
    message: str
    """One line."""
    remedy: str
    nodes: list[str]
    """Hosts at fault; empty where no node is singled out."""


class PreflightNode(Part):
    """Facts of one node."""

    host: str
    agreement: dict[str, str]
    """Values that should be equal on all nodes: code, versions, fabric."""
    agreement_hash: str
    """SHA-256 of `agreement`: 12 hex digits."""
    gpus: int | None
    """GPUs that the job may use by NVML, 0 without a driver; null if NVML gave no answer, and for runs
    without GPUs."""
    processors: int
    """Number of processors that this job may use."""
    memory_lock_bytes: int | None
    """Limit of locked memory (`ulimit -l`); null without a limit, and with CAP_IPC_LOCK (as root)."""
    free_bytes: dict[str, int]
    """Free space by folder, for a user without privileges."""
    clock_offset_s: tuple[float, float] | None
    """Bounds of this node's clock less that of node 0, in seconds, by the order in which the nodes
    wrote and saw files; null for node 0."""
    write_bytes_per_s: float | None
    """Rate of a written and flushed file in the run directory: in mode basic of node 0 alone, in mode full of
    the first 8 nodes; null of other nodes, and in mode basic without a scheduler."""
    read_bytes_per_s: float | None
    """Rate of reading that file after it was dropped from this node's cache."""
    seconds: float
    """Duration of this node's own checks."""


class PreflightAllReduce(Part):
    """An all-reduce over all ranks."""

    bytes: int
    seconds: float
    """Minimum over ranks and repeats: the last rank to arrive did not wait."""
    bus_bytes_per_s: float
    """`bytes` / `seconds` x 2(N-1)/N over N ranks, as nccl-tests defines it."""


class NodePairRate(Part):
    """Rate of data from the first rank of one node to that of another."""

    source: int
    """Node rank of the sender."""
    target: int
    bytes_per_s: float
    """Fastest of several messages, from the start of sending to the receiver's acknowledgement."""


class PreflightBandwidth(Part):
    """Measured communication, in mode full."""

    backend: str
    ranks: int
    all_reduce: list[PreflightAllReduce]
    """At the size of DDP's buckets (`parallel.ddp.bucket_mb`, else 25 MiB) and at a large size, the smaller
    one first; without the other one if that would take too long."""
    links: list[NodePairRate]
    """Rates between neighbouring nodes in a ring."""
    message_bytes: int
    """Size of the messages between neighbours."""
    node_link_bytes_per_s: float | None
    """Rate at which the ranks of a node can reach other nodes: of its fastest compute adapters, or of its
    interface, within its PCIe slots; null if unknown, as for virtual interfaces, and on one node."""
    gpu_path: Literal["nvlink"] | None = None
    """In a job of one node: the links between its GPUs; null unless NVLink connects all of them."""
    gpu_link_bytes_per_s: float | None = None
    """In a job of one node: rate of all these links of one GPU in one direction; null if unknown."""
    ceiling_bytes_per_s: float | None
    """Largest possible bus bandwidth by the model of docs/your-cluster.md; null without a known link rate."""
    floor_bytes_per_s: float | None
    """Bus bandwidth of the large size below which there is a warning; null without a ceiling."""
    not_judged: str | None = None
    """One line on one or two nodes whose bandwidth is not judged; else null."""
    seconds: float


class Preflight(Record):
    """`preflight.json` of an attempt: the verdict on its nodes before the ranks start. Written by node 0."""

    attempt: int
    mode: Literal["basic", "full", "off"]
    """Resolved `job.preflight`; `off` also for `--skip-preflight`."""
    verdict: Literal["passed", "warned", "refused", "skipped"]
    message: str | None
    """One line: the first error and its remedy; null unless the nodes were refused."""
    at_fault: list[str]
    """Hosts that the errors single out. The next start of the job excludes them."""
    problems: list[PreflightProblem]
    nodes: list[PreflightNode]
    """By node rank; without nodes that wrote no facts."""
    bandwidth: PreflightBandwidth | None
    seconds: float
    """Duration on node 0, with `waited_s`."""
    waited_s: float
    """Part of it in which node 0 waited for the facts of other nodes, which may start later."""
