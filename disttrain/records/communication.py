"""Records of communication: collectives in profiled steps, and the network that a run used."""

from __future__ import annotations

from typing import Literal

from disttrain.records.base import Record


class _Collective(Record):
    """One collective of a step. Durations in seconds."""

    kind: str
    """`all_reduce`, `all_gather`, ..."""
    bucket: int
    """Index among the collectives of its kind in this step, in order of start."""
    bytes: int | None
    """Size of the larger of input and output on one rank; null where the profiler does not report it."""
    ranks: int | None = None
    """Ranks of its process group."""
    dimension: Literal["world", "shard", "replicate"] = "world"
    """Dimension of the mesh over which it runs under hybrid sharding; `world` elsewhere."""
    hidden_s: float
    """Part of the duration during which this rank computed."""
    exposed_s: float


class SampledCollective(_Collective):
    """One collective of a profiled step on one rank."""

    start_s: float
    """Start, in seconds since the step began."""
    duration_s: float
    """Duration, including queueing and waiting for peers."""


class CommSample(Record):
    """One line of `comm-RRRRR.jsonl`: communication of one rank in one profiled step, in seconds.

    Collectives may overlap, so totals are lengths of merged intervals, not sums of durations.
    """

    step: int
    step_s: float
    compute_s: float
    total_s: float
    """Time with a collective in progress."""
    hidden_s: float
    """The part of it in which this rank computed."""
    exposed_s: float
    """The rest of it."""
    collectives: list[SampledCollective]


class CollectiveSummary(_Collective):
    """One collective of a step: means over profiled steps and ranks."""

    total_s: float
    transfer_s: float
    """Minimum duration over the ranks of a process group, mean over groups and steps: the last rank to arrive
    did not wait."""
    algorithm_bytes_per_s: float | None
    """`bytes` / `transfer_s`."""
    bus_bytes_per_s: float | None
    """Bus bandwidth as nccl-tests defines it, comparable with the rate of a link: algorithm bandwidth x
    2(N-1)/N for an all-reduce over N ranks, x (N-1)/N for all-gather and reduce-scatter."""


class CommSummary(Record):
    """Communication of a step: means over profiled steps and ranks."""

    method: str
    sampled_steps: int
    count: int
    """Collectives in a step."""
    bytes: int | None
    """Sum of `CollectiveSummary.bytes`: bytes per rank and step."""
    total_s: float
    hidden_s: float
    exposed_s: float
    compute_s: float
    bus_bytes_per_s: float | None
    """Bus bytes of a step / minimum over ranks of the time with a collective in progress."""
    collectives: list[CollectiveSummary]


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
    node, and where links were not sampled."""
    nccl: NcclLog | None = None
    nccl_reason: str | None = None
    """Reason for which `nccl` is null."""
    ranks: list[RankProcessors] = []


class FabricRecord(Record):
    """`attempts/NNN/fabric.json`: the network that an attempt of several ranks used, written at its end."""

    attempt: int
    backend: str | None
    nodes: list[NodeFabric]
