"""The verdict on the network in `metrics.json`, and `fabric.json`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from disttrain.hardware.link_counters import Link, LinkAccumulator
from disttrain.hardware.node_samples import NodeSamples
from disttrain.records.fabric import FabricRecord
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from disttrain.telemetry.fabric import fabric_record
from disttrain.telemetry.rank_summary import RankSummary
from tests.support.fabric_nodes import MIB

FOUR = {"world_size": 4, "nodes": 2, "ranks_per_node": 2, "backend": "gloo"}


def ranks(sampled: bool = True) -> list[RankSummary]:
    """Two nodes of two ranks; the first of each has the samples of its node."""
    link = LinkAccumulator(Link("eth0", "interface", None, expected=True), 5 * MIB, 3 * MIB, 2.0)
    samples = NodeSamples(links=[link], expected_adapters=["cxi0/1"])
    return [
        RankSummary(
            (0.0,) * 7, "cpu", 1, None, None, samples if sampled and rank % 2 == 0 else None,
            rank, f"host{rank // 2}", f"{rank}",
        )
        for rank in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "sampled", "reason"),
    [
        ({"world_size": 1, "nodes": 1}, True, "one rank has no peers to communicate with"),
        ({"nodes": 1}, True, "gloo on one node uses no link"),
        ({}, False, "telemetry.gpu_every_s is 0"),
    ],
)
def test_a_run_without_a_network_has_the_reason(fields, sampled: bool, reason: str) -> None:
    assert fabric_record.verdict(FOUR | fields, ranks(sampled)) == ({"fabric": None}, {"fabric": reason})


def test_the_record_has_each_node_and_the_processors_of_its_ranks(tmp_path: Path) -> None:
    fields, reasons = fabric_record.verdict(FOUR, ranks())
    assert reasons == {}
    found = fields["fabric"]
    assert found is not None
    assert (found.verdict, found.transport) == ("as_expected", "gloo over eth0")
    attempt = RunDir(tmp_path).attempt(3)
    metrics = SimpleNamespace(fabric=found, world_size=4, backend="gloo", ranks_per_node=2)
    fabric_record.write(attempt, metrics, ranks())
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert record.attempt == 3
    assert [node.host for node in record.nodes] == ["host0", "host1"]
    assert [[rank.processors for rank in node.ranks] for node in record.nodes] == [["0", "1"], ["2", "3"]]
    assert record.nodes[1].links[0].sent_bytes == 5 * MIB
    assert record.nodes[1].expected_adapters == ["cxi0/1"]


def test_processors_are_recorded_without_a_verdict(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    metrics = SimpleNamespace(fabric=None, world_size=4, backend="gloo", ranks_per_node=4)
    fabric_record.write(attempt, metrics, ranks(sampled=False))
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert record.verdict is None
    assert [rank.processors for rank in record.nodes[0].ranks] == ["0", "1", "2", "3"]


def test_a_single_rank_has_no_record(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    metrics = SimpleNamespace(fabric=None, world_size=1, backend=None, ranks_per_node=1)
    fabric_record.write(attempt, metrics, ranks()[:1])
    assert not attempt.fabric.exists()
