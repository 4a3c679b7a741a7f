"""`fabric.json`: the network that an attempt used."""

from __future__ import annotations

from pathlib import Path

from disttrain.hardware.sampler import NodeSamples
from disttrain.hardware.statistics import DeviceSamples, Tally
from disttrain.records.communication import FabricRecord
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from disttrain.telemetry.network import network_record
from disttrain.telemetry.summary import RankSummary
from tests.support.fabric_nodes import MIB


def ranks(sampled: bool = True) -> list[RankSummary]:
    """Two nodes of two ranks; the first of each has the samples of its node."""
    constants = {"kind": "interface", "expected": True, "line_rate_bytes_per_s": None}
    link = DeviceSamples("eth0", constants, clock=Tally(segment_growth=2.0))
    link.figures = {
        "sent_bytes": Tally(segment_growth=5 * MIB),
        "received_bytes": Tally(segment_growth=3 * MIB),
    }
    samples = NodeSamples(links=[link], expected_adapters=["cxi0/1"])
    return [
        RankSummary(
            (0.0,) * 7, "cpu", 1, None, None, samples if sampled and rank % 2 == 0 else None,
            (None, None), rank, f"host{rank // 2}", f"{rank}",
        )
        for rank in range(4)
    ]  # fmt: skip


def test_the_record_has_each_node_and_the_processors_of_its_ranks(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(3)
    network_record.write(attempt, "gloo", 2, ranks())
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert record.attempt == 3
    assert [node.host for node in record.nodes] == ["host0", "host1"]
    assert [[rank.processors for rank in node.ranks] for node in record.nodes] == [["0", "1"], ["2", "3"]]
    assert record.nodes[1].links[0].sent_bytes == 5 * MIB
    assert record.nodes[1].expected_adapters == ["cxi0/1"]


def test_processors_are_recorded_without_samples(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    network_record.write(attempt, "gloo", 4, ranks(sampled=False))
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert [rank.processors for rank in record.nodes[0].ranks] == ["0", "1", "2", "3"]
