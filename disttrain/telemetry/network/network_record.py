"""`fabric.json`: the network that an attempt used. NCCL's log of the first steps is a part of it."""

from __future__ import annotations

from collections.abc import Sequence

from disttrain.hardware.statistics import DeviceSamples
from disttrain.records.communication import FabricRecord, LinkTraffic, NodeFabric, RankProcessors
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.telemetry.summary import RankSummary


def _traffic(link: DeviceSamples) -> LinkTraffic:
    return LinkTraffic(
        name=link.name,
        sent_bytes=int(link.grown("sent_bytes")),
        received_bytes=int(link.grown("received_bytes")),
        seconds=link.clock.segment_growth or 0.0,
        **link.constants,
    )


def write(attempt: Attempt, backend: str | None, ranks_per_node: int, ranks: Sequence[RankSummary]) -> None:
    """Write `fabric.json`. Rank 0 alone."""
    nodes: dict[int, NodeFabric] = {}
    for rank in ranks:
        number = rank.rank // ranks_per_node
        node = nodes.setdefault(number, NodeFabric(node=number, host=rank.host))
        node.ranks.append(RankProcessors(rank=rank.rank, processors=rank.processors))
        if rank.usage is not None:
            node.links = [_traffic(link) for link in rank.usage.links]
            node.expected_adapters = rank.usage.expected_adapters
            node.nccl, node.nccl_reason = rank.nccl
    in_order = [nodes[number] for number in sorted(nodes)]
    record = FabricRecord(attempt=attempt.number, backend=backend, nodes=in_order)
    with drop_if_disk_full():
        write_json(attempt.fabric, record.model_dump(mode="json"))
