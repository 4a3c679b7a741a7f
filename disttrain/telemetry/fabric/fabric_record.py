"""The verdict on the network in `metrics.json`, and `fabric.json` with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from disttrain.records.fabric import FabricRecord, FabricVerdict, NodeFabric, RankProcessors
from disttrain.records.json_files import write_json
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import Attempt
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.telemetry.fabric.verdict import judge
from disttrain.telemetry.null_reasons import ALONE
from disttrain.telemetry.rank_summary import RankSummary


def verdict(
    metrics_fields: Mapping[str, Any], ranks: Sequence[RankSummary]
) -> tuple[dict[str, FabricVerdict | None], dict[str, str]]:
    """The field `fabric` of `Metrics`, and the reason if it is null."""
    reason = None
    if metrics_fields["world_size"] == 1:
        reason = ALONE
    elif metrics_fields["nodes"] == 1 and metrics_fields["backend"] != "nccl":
        reason = f"{metrics_fields['backend']} on one node uses no link"
    elif not any(rank.usage for rank in ranks):
        reason = "telemetry.gpu_every_s is 0"
    if reason is not None:
        return {"fabric": None}, {"fabric": reason}
    nodes = nodes_of(ranks, metrics_fields["ranks_per_node"])
    return {"fabric": judge(metrics_fields["backend"], nodes)}, {}


def nodes_of(ranks: Sequence[RankSummary], ranks_per_node: int) -> list[NodeFabric]:
    """The nodes of these ranks, with the samples of the rank that takes them."""
    found: dict[int, NodeFabric] = {}
    for rank in ranks:
        number = rank.rank // ranks_per_node
        node = found.setdefault(number, NodeFabric(node=number, host=rank.host))
        node.ranks.append(RankProcessors(rank=rank.rank, processors=rank.processors))
        if rank.usage is not None:
            node.links = [link.traffic() for link in rank.usage.links]
            node.expected_adapters = rank.usage.expected_adapters
            node.nccl, node.nccl_reason = rank.usage.nccl, rank.usage.nccl_reason
    return [found[number] for number in sorted(found)]


def write(attempt: Attempt, metrics: Metrics, ranks: Sequence[RankSummary]) -> None:
    """Write `fabric.json` if the run has several ranks. Rank 0 alone."""
    if metrics.world_size == 1:
        return
    record = FabricRecord(
        attempt=attempt.number,
        backend=metrics.backend,
        verdict=metrics.fabric,
        nodes=nodes_of(ranks, metrics.ranks_per_node),
    )
    with drop_if_disk_full():
        write_json(attempt.fabric, record.model_dump(mode="json"))
