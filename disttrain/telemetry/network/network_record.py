"""`fabric.json`: the network that an attempt used. NCCL's log of the first steps is a part of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from disttrain.errors import in_one_line
from disttrain.records.fabric import FabricRecord, NcclLog, NodeFabric, RankProcessors
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from disttrain.runtime import nccl_log_file
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.telemetry.network.nccl_log import parse
from disttrain.telemetry.rank_summary import RankSummary


def read_first_steps(attempt: Attempt, node: int) -> tuple[NcclLog | None, str | None]:
    """End the log of NCCL on this node, and read it; the reason if there is none. Raises nothing."""
    path = attempt.nccl_log(node)
    try:
        nccl_log_file.end(path)
        with path.open(errors="replace") as lines:
            return parse(lines), None
    except FileNotFoundError:
        for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG"):
            if os.environ.get(name):
                return None, f"{name} is set, so NCCL's log is not in the folder of the attempt"
        return None, "NCCL wrote no log: none was requested before the process group began"
    except Exception as error:  # a log of unknown form must not end the training
        return None, f"NCCL's log cannot be read: {in_one_line(error)}"


def write(attempt: Attempt, backend: str | None, ranks_per_node: int, ranks: Sequence[RankSummary]) -> None:
    """Write `fabric.json`. Rank 0 alone."""
    nodes: dict[int, NodeFabric] = {}
    for rank in ranks:
        number = rank.rank // ranks_per_node
        node = nodes.setdefault(number, NodeFabric(node=number, host=rank.host))
        node.ranks.append(RankProcessors(rank=rank.rank, processors=rank.processors))
        if rank.usage is not None:
            node.links = [link.traffic() for link in rank.usage.links]
            node.expected_adapters = rank.usage.expected_adapters
            node.nccl, node.nccl_reason = rank.usage.nccl, rank.usage.nccl_reason
    in_order = [nodes[number] for number in sorted(nodes)]
    record = FabricRecord(attempt=attempt.number, backend=backend, nodes=in_order)
    with drop_if_disk_full():
        write_json(attempt.fabric, record.model_dump(mode="json"))
