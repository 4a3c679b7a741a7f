"""Record of the network that a run used: links with traffic, and NCCL's own log."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record


class LinkTraffic(Record):
    """Traffic of one link of a node in measured steps, from counters of the kernel."""

    name: str
    """An interface (`eth0`), or adapter and port (`mlx5_0/1`)."""
    kind: Literal["adapter", "interface"]
    """`adapter`: RDMA traffic of InfiniBand, RoCE or EFA. `interface`: packets of the kernel, such as TCP."""
    sent_bytes: int
    received_bytes: int
    seconds: float
    """Time between the counted samples."""
    expected: bool
    """Whether the traffic of training should use the link."""
    line_rate_bytes_per_s: float | None = None
    """Rate in one direction by the driver; null for virtual interfaces."""


class CollectiveChoice(Record):
    """Algorithm and protocol of NCCL for collectives of one size."""

    collective: str | None
    """Null in logs of NCCL before 2.23."""
    bytes: int
    algorithm: str
    protocol: str
    channels: int | None = None
    """Null in logs of NCCL before 2.25."""


class NcclLog(Record):
    """The log of NCCL on the first rank of a node, from its start to the end of the warm-up steps.

    Other ranks write no log: channels are those of this rank. Null values are absent from the log.
    """

    version: str | None = None
    """NCCL prints its version on the first rank of a communicator."""
    network: str | None = None
    """`IB`, `Socket`, or the name of a plugin."""
    transports: dict[str, int] = {}
    """Channels to and from other ranks by transport: `NET/IB`, `NET/Socket`, `P2P`, `SHM`,
    `COLLNET/<plugin>`."""
    network_channels: int = 0
    """Channels over the network."""
    gpudirect_channels: int = 0
    """Those of `network_channels` between adapter and GPU memory directly."""
    adapters: list[str] = []
    """Adapters that NCCL found (`NET/IB : Using`), with their ports: `mlx5_0/1`."""
    interfaces: list[str] = []
    """Interfaces of `NET/Socket : Using`."""
    bootstrap_interface: str | None = None
    """Interface of the connections outside of the collectives."""
    plugins: list[str] = []
    """Plugins that NCCL loaded."""
    collective_channels: int | None = None
    """Channels of a collective."""
    choices: list[CollectiveChoice] = []
    """Each choice once, largest collectives first; empty on nodes without rank 0."""
    environment: dict[str, str] = {}
    """Variables that NCCL read from the environment or from its files."""
    warnings: list[str] = []
    """Texts of the first 20 different warnings."""
    warning_count: int = 0
    init_s: float | None = None
    """Seconds of the slowest start of a communicator; null in logs of NCCL before 2.22."""


class RankProcessors(Record):
    """Processors that one rank may use, as the kernel reports them in the rank."""

    rank: int
    processors: str
    """For example `0-7,64-71`."""


class NodeFabric(Record):
    """The network of one node."""

    node: int
    host: str
    links: list[LinkTraffic] = []
    expected_adapters: list[str] | None = None
    """Ports of adapters that NCCL should use, also those without a counter in `links`; null in runs on one
    node, in older records and where links were not sampled."""
    nccl: NcclLog | None = None
    nccl_reason: str | None = None
    """Reason for which `nccl` is null."""
    ranks: list[RankProcessors] = []


class FabricRecord(Record):
    """`attempts/NNN/fabric.json`: the network that an attempt of several ranks used, written at its end."""

    attempt: int
    backend: str | None
    nodes: list[NodeFabric]
