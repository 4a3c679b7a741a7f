"""The network of an attempt: formats of NCCL's log, the request for a log that ends, and `fabric.json`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrain.hardware.node_sampler import NodeSamples
from disttrain.hardware.statistics import DeviceSamples, Tally
from disttrain.records.communication import FabricRecord
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process import RankInfo
from disttrain.telemetry import network
from disttrain.telemetry.network import (
    end_nccl_log,
    environment_of_children,
    parse,
    request_nccl_log,
    write_network,
)
from disttrain.telemetry.summary import RankSummary
from tests.support.fabric_nodes import MIB, NCCL_LOGS, nccl_log

EXPECTED = {
    "2.18.5-infiniband": {
        "version": "2.18.5",
        "network": "IB",
        "transports": {"NET/IB": 3, "P2P": 2},
        "network_channels": 3,
        "gpudirect_channels": 3,
        "adapters": [f"mlx5_{number}/1" for number in range(8)],
        "collective_channels": 16,
        "bootstrap_interface": "ib0",
        "warnings": [],
        "init_s": None,
    },
    "2.19.3-sockets": {
        "network": "Socket",
        "transports": {"NET/Socket": 4},
        "gpudirect_channels": 0,
        "adapters": [],
        "interfaces": ["ens7", "ens8"],
        "environment": {"NCCL_SOCKET_IFNAME": "ens"},
    },
    "2.21.5-roce": {
        "transports": {"NET/IB": 3, "SHM": 1},
        "gpudirect_channels": 0,
        "adapters": ["mlx5_bond_0/1"],
        "environment": {"NCCL_IB_HCA": "mlx5_bond_0"},
        "warning_count": 1,
    },
    "2.23.4-efa": {
        "network": "AWS Libfabric",
        "transports": {"NET/AWS Libfabric": 2, "P2P": 1},
        "gpudirect_channels": 2,
        "plugins": ["libnccl-net.so", "aws-ofi-nccl 1.14.0"],
        "init_s": 4.71,
    },
    "2.25.1-nvlink": {"version": "2.25.1", "transports": {"P2P": 2}, "network_channels": 0, "init_s": 1.08},
    "2.27.7-infiniband": {
        "version": "2.27.7",
        "network": "IB",
        "adapters": ["mlx5_0/1", "mlx5_3/1", "mlx5_4/1", "mlx5_5/1"],
        "gpudirect_channels": 2,
        "warnings": ["Cuda failure 'operation not supported'"],
        "init_s": 81.2,
    },
    "2.30.7-slingshot": {
        "version": "2.30.7",
        "network": "AWS Libfabric",
        "plugins": ["AWS Libfabric"],
        "environment": {"NCCL_NET": "AWS Libfabric"},
    },
    "2.30.7-shared-memory": {"transports": {"SHM": 2}, "network_channels": 0},
    "2.5.7-roce-partial-gpudirect": {
        "version": "2.5.7",
        "transports": {"NET/IB": 2, "P2P": 1, "SHM": 1},
        "gpudirect_channels": 1,
        "adapters": ["mlx5_0/1"],
        "bootstrap_interface": "br0",
    },
    "2.9-efa": {
        "network": "AWS Libfabric",
        "transports": {"NET/AWS Libfabric": 2, "P2P": 1},
        "gpudirect_channels": 2,
        "plugins": ["aws-ofi-nccl 1.4.0aws"],
    },
    "2.18.1-sockets": {
        "version": "2.18.1",
        "transports": {"NET/Socket": 2, "P2P": 1},
        "bootstrap_interface": "ibs85f0",
        "warnings": ["socketFinalizeAccept: wrong type 4 != 3"],
    },
    "2.20-hpcx-merged-ports": {
        "network": "IBext_v8",
        "transports": {"NET/IBext_v8": 3},
        "gpudirect_channels": 0,
        "adapters": ["mlx5_2/1", "mlx5_3/1", "mlx5_0/1", "mlx5_1/1"],
        "plugins": ["IBext_v8"],
        "bootstrap_interface": "bond0.526",
    },
    "2.22.3-roce": {"version": "2.22.3", "adapters": ["mlx5_0/1", "mlx5_1/1"], "init_s": 1.08},
    "2.26.5-vendor-plugin": {
        "network": "NCCL RDMA Plugin v6",
        "transports": {"NET/NCCL RDMA Plugin v6": 2, "P2P": 1},
        "gpudirect_channels": 2,
        "adapters": ["mlx5_bond_6/1", "mlx5_bond_7/1"],
        "plugins": ["NCCL RDMA Plugin v6", "IBext"],
        "init_s": 1.1,
        "environment": {
            "NCCL_SOCKET_IFNAME": "bond0", "NCCL_NET_GDR_LEVEL": "PIX", "NCCL_IB_QPS_PER_CONNECTION": "4",
        },
    },
    "sharp": {
        "transports": {"COLLNET/SHARP": 1},
        "network_channels": 1,
        "gpudirect_channels": 1,
        "warnings": ["SHARP group create: Streaming Tree lock failed (-18)"],
    },
    "rccl-sockets": {
        "version": "2.27.7",
        "transports": {"NET/Socket": 1, "P2P": 1},
        "adapters": [],
        "interfaces": ["hsn0", "hsn1"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_of_each_version_is_read(name: str) -> None:
    found = nccl_log(name).model_dump()
    assert {key: found[key] for key in EXPECTED[name]} == EXPECTED[name]


def test_each_sample_has_a_test() -> None:
    assert {path.stem for path in NCCL_LOGS.glob("*.log")} == set(EXPECTED)


def test_choices_are_those_of_each_size() -> None:
    old, new = nccl_log("2.18.5-infiniband").choices, nccl_log("2.27.7-infiniband").choices
    assert [(each.collective, each.bytes) for each in old] == [(None, 805306368), (None, 262144)]
    assert [(each.collective, each.algorithm, each.protocol, each.channels) for each in new] == [
        ("ReduceScatter", "RING", "SIMPLE", 16),
        ("AllReduce", "NVLS_TREE", "SIMPLE", 16),
    ]


def test_unknown_lines_and_prefixes_of_a_launcher_are_no_obstacle() -> None:
    lines = ["", "srun: step 1", "3: host:1:2 [0] NCCL INFO Using network IB", "NCCL INFO ???", "\ufffd\x00"]
    assert parse(lines).network == "IB"


LEADER, OTHER, ALONE = RankInfo(8, 16, 0, 8), RankInfo(9, 16, 1, 8), RankInfo(0, 1, 0, 1)


def test_the_first_rank_of_each_node_requests_a_log_in_the_attempt(tmp_path: Path) -> None:
    attempt, environ = RunDir(tmp_path).attempt(0), {}
    request_nccl_log(attempt, LEADER, environ)
    assert environ["NCCL_DEBUG_FILE"] == str(attempt.nccl_log(1))
    assert environ["NCCL_DEBUG"] == "INFO"
    assert "TUNING" in environ["NCCL_DEBUG_SUBSYS"]


@pytest.mark.parametrize(
    ("info", "given"),
    [
        (OTHER, {}),
        (ALONE, {}),
        (LEADER, {"NCCL_DEBUG": "INFO"}),
        (LEADER, {"NCCL_DEBUG_FILE": "/x/%h.%p"}),
        (LEADER, {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}),
    ],
)
def test_other_ranks_and_settings_of_the_user_are_left_alone(tmp_path: Path, info, given) -> None:
    environ = dict(given)
    request_nccl_log(RunDir(tmp_path).attempt(0), info, environ)
    assert environ == given


def test_the_log_of_warnings_goes_on_and_the_log_of_collectives_ends(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "nccl.log"
    with path.open("w", buffering=1) as log:
        monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "INIT,NET")
        end_nccl_log(path)
        print("kept", file=log)
        monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "INIT,NET,TUNING")
        end_nccl_log(path)
        print("dropped", file=log)
    assert path.read_text() == "kept\n"


def test_other_processes_do_not_inherit_the_request(tmp_path: Path, monkeypatch) -> None:
    for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setattr(network, "_replaced", {})
    request_nccl_log(RunDir(tmp_path).attempt(0), LEADER)
    inherited = environment_of_children()
    for name in ("NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"):
        del os.environ[name]
    assert inherited == {**os.environ, "NCCL_DEBUG": "WARN"}


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
    write_network(attempt, "gloo", 2, ranks())
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert record.attempt == 3
    assert [node.host for node in record.nodes] == ["host0", "host1"]
    assert [[rank.processors for rank in node.ranks] for node in record.nodes] == [["0", "1"], ["2", "3"]]
    assert record.nodes[1].links[0].sent_bytes == 5 * MIB
    assert record.nodes[1].expected_adapters == ["cxi0/1"]


def test_processors_are_recorded_without_samples(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    write_network(attempt, "gloo", 4, ranks(sampled=False))
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert [rank.processors for rank in record.nodes[0].ranks] == ["0", "1", "2", "3"]
