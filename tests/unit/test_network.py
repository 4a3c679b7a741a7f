"""The network of an attempt: formats of NCCL's log, the request for a log that ends, and `fabric.json`."""

import os

import pytest

from disttrain.hardware.node_sampler import NodeSamples
from disttrain.hardware.statistics import DeviceSamples, Tally
from disttrain.records.communication import FabricRecord
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process import RankInfo
from disttrain.telemetry.network import (
    EACH_COLLECTIVE,
    WARNINGS_KEPT,
    parse,
    read_first_steps,
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
    },
    "2.19.3-sockets": {
        "network": "Socket",
        "transports": {"NET/Socket": 4},
        "interfaces": ["ens7", "ens8"],
        "environment": {"NCCL_SOCKET_IFNAME": "ens"},
    },
    "2.21.5-roce": {
        "transports": {"NET/IB": 3, "SHM": 1},
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
        "interfaces": ["hsn0", "hsn1"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_of_each_version_is_read(name):
    found = nccl_log(name).model_dump()
    assert {key: found[key] for key in EXPECTED[name]} == EXPECTED[name]


def test_each_sample_has_a_test():
    assert {path.stem for path in NCCL_LOGS.glob("*.log")} == set(EXPECTED)


def test_choices_are_those_of_each_size():
    old, new = (nccl_log(name).choices for name in ("2.18.5-infiniband", "2.27.7-infiniband"))
    assert [(each.collective, each.bytes) for each in old] == [(None, 805306368), (None, 262144)]
    assert [(each.collective, each.algorithm, each.protocol, each.channels) for each in new] == [
        ("ReduceScatter", "RING", "SIMPLE", 16),
        ("AllReduce", "NVLS_TREE", "SIMPLE", 16),
    ]


def test_unknown_lines_and_prefixes_of_a_launcher_are_skipped():
    lines = ["", "srun: step 1", "3: host:1:2 [0] NCCL INFO Using network IB", "NCCL INFO ???", "\ufffd\x00"]
    lines += [f"NCCL WARN problem {number % 30}" for number in range(60)]
    lines += ["NCCL INFO NET/Plugin: Loaded net plugin X (v8)"] * 2
    log = parse(lines)
    assert (log.network, log.plugins) == ("IB", ["X"])
    assert (log.warning_count, len(log.warnings)) == (60, WARNINGS_KEPT)


LEADER, OTHER, ALONE = RankInfo(8, 16, 0, 8), RankInfo(9, 16, 1, 8), RankInfo(0, 1, 0, 1)
COLLECTIVES = f"INIT,BOOTSTRAP,ENV,NET,GRAPH,{EACH_COLLECTIVE}"


@pytest.mark.parametrize(
    ("info", "given", "subsystems"),
    [
        (LEADER, {}, COLLECTIVES),
        (LEADER, {"NCCL_DEBUG": "WARN"}, COLLECTIVES.removesuffix(f",{EACH_COLLECTIVE}")),
        (OTHER, {}, None),
        (ALONE, {}, None),
        (LEADER, {"NCCL_DEBUG": "INFO"}, None),
        (LEADER, {"NCCL_DEBUG_FILE": "/x/%h.%p"}, None),
        (LEADER, {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}, None),
    ],
)
def test_the_first_rank_of_a_node_requests_a_log_unless_the_user_did(tmp_path, info, given, subsystems):
    environ = {"HOME": "/home", **given}
    attempt, before = RunDir(tmp_path).attempt(0), dict(environ)
    request_nccl_log(attempt, info, environ)
    file = str(attempt.nccl_log(1))
    requested = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_FILE": file}
    assert environ == before | (requested if subsystems else {})


def test_the_log_of_warnings_goes_on_and_the_log_of_collectives_ends(tmp_path, monkeypatch):
    attempt = RunDir(tmp_path).attempt(0)
    monkeypatch.setattr(os, "environ", {})
    found, reason = read_first_steps(attempt, 0)
    assert (found, reason.startswith("NCCL wrote no log")) == (None, True)
    path = attempt.nccl_log(0)
    path.parent.mkdir(parents=True)
    with path.open("w", buffering=1) as log:
        for subsystems, line in (("INIT,NET", "NCCL INFO Using network IB"), (COLLECTIVES, "dropped")):
            monkeypatch.setenv("NCCL_DEBUG_SUBSYS", subsystems)
            found, reason = read_first_steps(attempt, 0)
            print(line, file=log)
    assert path.read_text() == "NCCL INFO Using network IB\n"
    assert (found.network, reason) == ("IB", None)
    path.unlink()
    assert read_first_steps(attempt, 0)[1].startswith("NCCL_DEBUG_SUBSYS is set")


def summaries(sampled=True):
    """Two nodes of two ranks; the first of each has the samples of its node."""
    constants = {"kind": "interface", "expected": True, "line_rate_bytes_per_s": None}
    figures = {"sent_bytes": Tally(segment_growth=5 * MIB), "received_bytes": Tally(segment_growth=3 * MIB)}
    link = DeviceSamples("eth0", constants, clock=Tally(segment_growth=2.0), figures=figures)
    samples = NodeSamples(links=[link], expected_adapters=["cxi0/1"])
    return [
        RankSummary(
            [0.0] * 7, "cpu", 1, None, None, samples if sampled and rank % 2 == 0 else None,
            (None, "no log" if rank % 2 == 0 else None), rank, f"host{rank // 2}", f"{rank}",
        )
        for rank in range(4)
    ]  # fmt: skip


def test_the_record_has_each_node_and_the_processors_of_its_ranks(tmp_path):
    attempt = RunDir(tmp_path).attempt(3)
    write_network(attempt, "gloo", 2, summaries())
    record = FabricRecord.model_validate(read_json(attempt.fabric))
    assert (record.attempt, [node.host for node in record.nodes]) == (3, ["host0", "host1"])
    assert [[rank.processors for rank in node.ranks] for node in record.nodes] == [["0", "1"], ["2", "3"]]
    node = record.nodes[1]
    [link] = node.links
    assert (link.sent_bytes, link.received_bytes, link.seconds) == (5 * MIB, 3 * MIB, 2.0)
    assert (node.expected_adapters, node.nccl_reason) == (["cxi0/1"], "no log")
    write_network(attempt, "gloo", 4, summaries(sampled=False))
    [node] = FabricRecord.model_validate(read_json(attempt.fabric)).nodes
    assert [rank.processors for rank in node.ranks] == ["0", "1", "2", "3"]
