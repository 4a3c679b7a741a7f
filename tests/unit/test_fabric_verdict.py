"""The verdict on the network of a run, from logs of NCCL and counters of links."""

from __future__ import annotations

import pytest

from analysis.results.network import judge
from disttrain.records.communication import NcclLog
from tests.support.fabric_nodes import adapter, interface, nccl_log, node

EIGHT = [adapter(f"mlx5_{number}/1", 100) for number in range(8)]
FOUR = [adapter(f"mlx5_{number}/1", 100) for number in (0, 3, 4, 5)]
IB, SOCKETS = nccl_log("2.18.5-infiniband"), nccl_log("2.19.3-sockets")
TCP = NcclLog(network="Socket", transports={"NET/Socket": 4}, network_channels=4, interfaces=["hsn0"])
OTHER, WITHIN = nccl_log("2.27.7-infiniband"), NcclLog(transports={"P2P": 4})
STORAGE = adapter("mlx5_9/1", 9000, expected=False)


def twice(*links, log=None, **fields):
    return [node(index, links, log, **fields) for index in range(2)]


def here(nodes):
    """The nodes as one machine."""
    return [each.model_copy(update={"host": "here"}) for each in nodes]


PROBLEMS = {
    "sockets beside adapters": (
        [node(0, EIGHT, IB), node(1, [*EIGHT, interface("ens7", 5000)], SOCKETS)],
        "NET/Socket, NET/IB",
        {"transport": "problem", "interface": "problem", "versions": "problem"},
    ),
    "sockets beside adapters without a counter": (
        twice(interface("hsn0", 900), log=TCP, expected_adapters=["cxi0/1", "cxi1/1"]),
        "NET/Socket",
        {"transport": "problem"},
    ),
    "sockets where no adapter is expected": (twice(interface("hsn0", 900), log=TCP), "NET/Socket", {}),
    "all adapters with GPUDirect": (twice(*EIGHT, log=IB), "NET/IB", {}),
    "host memory": (
        [node(0, [adapter("mlx5_bond_0/1", 100)], nccl_log("2.21.5-roce"))],
        "NET/IB",
        {"gpudirect": "problem", "warnings": "problem", "shared-memory": "note"},
    ),
    "an idle adapter and a long start": (
        [node(0, [*FOUR, adapter("mlx5_6/1", 0)], OTHER)],
        "NET/IB",
        {"adapters": "problem", "warnings": "problem", "uneven": "note", "init-time": "note"},
    ),
    "an unused adapter without a counter": (
        [node(0, nccl=OTHER, expected_adapters=[*OTHER.adapters, "mlx5_9/1"])],
        "NET/IB",
        {"adapters": "problem", "warnings": "problem", "init-time": "note"},
    ),
    "an adapter that is not expected": (
        [node(0, nccl=IB, expected_adapters=IB.adapters[1:])],
        "NET/IB",
        {"adapters": "note"},
    ),
    "no adapter is expected": ([node(0, nccl=IB, expected_adapters=[])], "NET/IB", {}),
    "storage beside the expected ones": ([node(0, [*EIGHT, STORAGE], IB)], "NET/IB", {"interface": "note"}),
    "storage without a log": ([node(0, [*EIGHT, STORAGE])], "unknown", {"interface": "problem"}),
    "nearly even": (twice(adapter("mlx5_0/1", 100), adapter("mlx5_1/1", 85)), "unknown", {}),
    "shared memory": ([node(0, nccl=nccl_log("2.30.7-shared-memory"))], "SHM", {"shared-memory": "note"}),
    "peer access": ([node(0, nccl=nccl_log("2.25.1-nvlink"))], "P2P", {}),
    "another interface without any adapter": (
        twice(interface("eth1", 1, expected=True), interface("eth0", 900), log=WITHIN),
        "P2P",
        {"interface": "problem"},
    ),
    "one log": ([node(0, nccl=IB), node(1)], "NET/IB", {}),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_findings_on_nccl_decide_with_problems_first(case) -> None:
    nodes, transport, findings = PROBLEMS[case]
    found = judge("nccl", nodes)
    assert ({each.code: each.severity for each in found.findings}, found.transport) == (findings, transport)
    assert found.verdict == ("problems" if "problem" in findings.values() else "as_expected")
    severities = [each.severity for each in found.findings]
    assert severities == sorted(severities, reverse=True)
    if severities[:1] == ["problem"]:
        assert found.conclusion.startswith(found.findings[0].message)


@pytest.mark.parametrize(
    ("links", "verdict", "severity"),
    [
        ([interface("eth1", 900, expected=True), interface("eth0", 1)], "as_expected", None),
        ([interface("eth1", 1, expected=True), interface("eth0", 900)], "problems", "problem"),
        (
            [interface("eth1", 0.4, expected=True), interface("eth0", 0.2)],
            "as_expected",
            "note",
        ),  # together enough
        ([interface("eth1", 800, expected=True), interface("eth0", 200)], "as_expected", "note"),
        ([interface("eth1", 900, expected=True), interface("eth0", 90)], "as_expected", None),
        # packets of IPoIB are in both counters
        ([interface("eth1", 800, expected=True), adapter("ib0", 810, expected=False)], "as_expected", None),
        ([interface("eth1", 0.1, expected=True)], "unproven", None),
    ],
)
def test_gloo_is_judged_by_the_traffic_of_its_interface(links, verdict, severity) -> None:
    found = judge("gloo", twice(*links))
    assert (found.verdict, found.transport) == (verdict, "gloo over eth1")
    assert verdict != "as_expected" or "eth1" in found.conclusion
    assert {each.code: each.severity for each in found.findings} == (
        {"interface": severity} if severity else {}
    )


UNSAMPLED = interface("eth0", 0, expected=True).model_copy(update={"seconds": 0.0})
SILENT, ETHERNET = adapter("mlx5_0/1", 0), interface("eth0", 900)


@pytest.mark.parametrize(
    ("backend", "nodes", "verdict", "evidence"),
    [
        ("nccl", [node(0, nccl_reason="NCCL_DEBUG is set")], "unproven", "NCCL_DEBUG is set"),
        ("nccl", twice(SILENT, log=NcclLog()), "unproven", "no channel line, and no link carried traffic"),
        ("nccl", twice(SILENT, log=WITHIN), "unproven", "over the network, and no link carried traffic"),
        ("nccl", twice(SILENT), "unproven", "NCCL has no log, and no link carried traffic"),
        ("nccl", twice(*EIGHT[:2], log=WITHIN), "as_expected", "steps went over mlx5_0/1, mlx5_1/1"),
        ("nccl", [node(0, nccl=NcclLog())], "unproven", "NCCL's log has no channel line"),
        ("nccl", here(twice(log=WITHIN)), "as_expected", "by P2P; no channel uses the network"),
        # other traffic proves nothing
        (
            "nccl",
            twice(ETHERNET, expected_adapters=["cxi0/1"]),
            "unproven",
            "of an expected adapter was read",
        ),
        ("gloo", twice(UNSAMPLED), "unproven", "shorter than the interval of the samples"),
        ("gloo", twice(), "unproven", ": no counter of a link was read"),
    ],
)
def test_several_nodes_need_channels_or_traffic_and_one_machine_channels_within_it(
    backend, nodes, verdict, evidence
) -> None:
    found = judge(backend, nodes)
    assert (found.verdict, found.findings) == (verdict, [])
    assert found.conclusion.endswith(f"{evidence}.")
