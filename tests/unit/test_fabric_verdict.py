"""The verdict on the network of a run, from logs of NCCL and counters of links."""

from __future__ import annotations

import pytest

from analysis.results.network import judge
from disttrain.records.communication import NcclLog
from tests.support.fabric_nodes import adapter, interface, nccl_log, node

EIGHT = [adapter(f"mlx5_{number}/1", 100) for number in range(8)]
FOUR = [adapter(f"mlx5_{number}/1", 100) for number in (0, 3, 4, 5)]


def codes(found) -> dict[str, str]:
    return {finding.code: finding.severity for finding in found.findings}


def test_all_adapters_with_gpudirect_are_as_expected() -> None:
    found = judge("nccl", [node(index, EIGHT, nccl_log("2.18.5-infiniband")) for index in range(2)])
    assert (found.verdict, found.transport, found.findings) == ("as_expected", "NET/IB", [])
    assert found.conclusion == (
        "NCCL connects the nodes by NET/IB over 8 adapters of each node with GPUDirect on all channels of "
        "the logged ranks."
    )


def test_sockets_beside_active_adapters_are_the_first_problem() -> None:
    sockets = node(1, [*EIGHT, interface("ens7", 5000)], nccl_log("2.19.3-sockets"))
    found = judge("nccl", [node(0, EIGHT, nccl_log("2.18.5-infiniband")), sockets])
    assert found.verdict == "problems"
    assert found.conclusion.startswith(
        "NCCL connects the nodes by TCP sockets over ens7, ens8, although node1 has 8 active RDMA ports"
    )
    assert codes(found) == {"transport": "problem", "interface": "problem", "versions": "problem"}


def test_sockets_without_an_adapter_are_as_expected() -> None:
    found = judge("nccl", [node(0, [interface("ens7", 100, expected=True)], nccl_log("2.19.3-sockets"))])
    assert (found.verdict, found.transport) == ("as_expected", "NET/Socket")


def test_host_memory_a_warning_and_shared_memory_are_found() -> None:
    found = judge("nccl", [node(0, [adapter("mlx5_bond_0/1", 100)], nccl_log("2.21.5-roce"))])
    assert codes(found) == {"gpudirect": "problem", "warnings": "problem", "shared-memory": "note"}
    assert "3 of 3 channels" in found.conclusion
    assert "completion from peer with error 12" in found.findings[1].message


def test_an_adapter_that_nccl_does_not_use_is_named() -> None:
    log = nccl_log("2.27.7-infiniband")
    found = judge("nccl", [node(0, [*FOUR, adapter("mlx5_6/1", 0)], log)])
    messages = {finding.code: finding.message for finding in found.findings}
    assert messages["adapters"] == "NCCL does not use mlx5_6/1 on node0"
    assert messages["uneven"] == "mlx5_6/1 of node0 carried 0% of the bytes of the busiest adapter"
    assert messages["init-time"] == "The start of a communicator took 81 s"


def test_one_node_is_about_its_gpus() -> None:
    found = judge("nccl", [node(0, nccl=nccl_log("2.25.1-nvlink"))])
    assert (found.verdict, found.transport) == ("as_expected", "P2P")
    slow = judge("nccl", [node(0, nccl=nccl_log("2.30.7-shared-memory"))])
    assert (slow.transport, codes(slow)) == ("SHM", {"shared-memory": "note"})


def test_without_evidence_the_verdict_says_why() -> None:
    found = judge("nccl", [node(0, nccl_reason="NCCL_DEBUG is set")])
    assert (found.verdict, found.transport) == ("unproven", "unknown")
    assert "NCCL_DEBUG is set" in found.conclusion
    assert judge("gloo", [node(0, [interface("eth0", 0.1, expected=True)])]).verdict == "unproven"


WITHIN = NcclLog(transports={"P2P": 4})


@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([NcclLog(), NcclLog()], "NCCL's log has no channel line"),
        ([NcclLog(network="IB"), None], "NCCL's log has no channel line"),
        ([WITHIN, WITHIN], "NCCL's log has no channel over the network"),
        ([None, None], "NCCL has no log"),
    ],
)
def test_logs_without_a_network_channel_prove_nothing_of_several_nodes(logs, reason: str) -> None:
    silent = [adapter("mlx5_0/1", 0), interface("eth0", 900)]
    idle = judge("nccl", [node(index, silent[:1], log) for index, log in enumerate(logs)])
    assert (idle.verdict, idle.conclusion) == (
        "unproven",
        f"No evidence shows the network that the run used: {reason}, and no link carried traffic.",
    )
    by_counters = judge("nccl", [node(index, EIGHT[:2], log) for index, log in enumerate(logs)])
    assert (by_counters.verdict, by_counters.conclusion) == (
        "as_expected",
        f"{reason}; traffic of the measured steps went over mlx5_0/1, mlx5_1/1.",
    )


def test_channels_of_one_log_prove_the_network() -> None:
    logs = [nccl_log("2.18.5-infiniband"), None]
    found = judge("nccl", [node(index, nccl=log) for index, log in enumerate(logs)])
    assert (found.verdict, found.transport) == ("as_expected", "NET/IB")


def test_one_machine_needs_channels_within_it() -> None:
    assert judge("nccl", [node(0, nccl=WITHIN)]).verdict == "as_expected"
    cut = judge("nccl", [node(0, nccl=NcclLog())])
    assert cut.conclusion == (
        "No evidence shows the network that the run used: NCCL's log has no channel line."
    )
    twice = [node(index, nccl=WITHIN).model_copy(update={"host": "here"}) for index in range(2)]
    assert judge("nccl", twice).conclusion == "NCCL connects the ranks by P2P; no channel uses the network."


def test_sockets_are_a_problem_where_expected_adapters_have_no_counter() -> None:
    log = NcclLog(network="Socket", transports={"NET/Socket": 4}, network_channels=4, interfaces=["hsn0"])
    ports = ["cxi0/1", "cxi1/1"]
    nodes = [node(index, [interface("hsn0", 900)], log, expected_adapters=ports) for index in range(2)]
    found = judge("nccl", nodes)
    assert (found.verdict, codes(found)) == ("problems", {"transport": "problem"})
    assert found.conclusion == (
        "NCCL connects the nodes by TCP sockets over hsn0, although node0, node1 have 2 active RDMA ports."
    )
    tcp = [each.model_copy(update={"expected_adapters": []}) for each in nodes]
    assert judge("nccl", tcp).verdict == "as_expected"


def test_other_traffic_proves_nothing_where_expected_adapters_have_no_counter() -> None:
    nodes = [node(index, [interface("eth0", 900)], expected_adapters=["cxi0/1"]) for index in range(2)]
    found = judge("nccl", nodes)
    assert found.verdict == "unproven"
    assert found.conclusion.endswith("NCCL has no log, and no counter of an expected adapter was read.")


def test_an_adapter_without_a_counter_that_nccl_does_not_use_is_named() -> None:
    log = nccl_log("2.27.7-infiniband")
    found = judge("nccl", [node(0, nccl=log, expected_adapters=[*log.adapters, "mlx5_9/1"])])
    assert [each.message for each in found.findings if each.code == "adapters"] == [
        "NCCL does not use mlx5_9/1 on node0"
    ]


def test_a_run_without_an_interval_of_samples_is_not_called_silent() -> None:
    unsampled = interface("eth0", 0, expected=True).model_copy(update={"seconds": 0.0})
    found = judge("gloo", [node(index, [unsampled]) for index in range(2)])
    assert found.verdict == "unproven"
    assert found.conclusion.endswith(": the measured steps were shorter than the interval of the samples.")
    assert judge("gloo", [node(0), node(1)]).conclusion.endswith(": no counter of a link was read.")


def test_gloo_is_judged_by_its_interface() -> None:
    right = judge("gloo", [node(0, [interface("eth1", 900, expected=True), interface("eth0", 1)])])
    assert (right.verdict, right.transport) == ("as_expected", "gloo over eth1")
    assert right.conclusion.startswith("gloo has no log; ")
    wrong = judge("gloo", [node(0, [interface("eth1", 1, expected=True), interface("eth0", 900)])])
    assert wrong.verdict == "problems"
    assert wrong.conclusion == (
        "eth0 carried 100% of the bytes of node0; the traffic of training should use eth1."
    )


def test_the_traffic_of_a_node_counts_over_all_its_links() -> None:
    links = [interface("eth0", 0.4, expected=True), interface("eth1", 0.2)]
    found = judge("gloo", [node(index, links) for index in range(2)])
    assert (found.verdict, codes(found)) == ("as_expected", {"interface": "note"})
    assert found.conclusion == "gloo has no log; traffic of the measured steps went over eth0."


def test_data_over_another_link_is_a_note_and_ipoib_counts_once() -> None:
    found = judge("gloo", [node(0, [interface("ib0", 800, expected=True), interface("eth0", 200)])])
    assert codes(found) == {"interface": "note"}
    twice = [interface("ib0", 800, expected=True), adapter("mlx5_0/1", 810, expected=False)]
    assert judge("gloo", [node(0, twice)]).findings == []


def test_traffic_of_a_storage_adapter_is_a_note_where_nccl_uses_the_expected_ones() -> None:
    storage = adapter("mlx5_9/1", 9000, expected=False)
    log = nccl_log("2.18.5-infiniband")
    found = judge("nccl", [node(0, [*EIGHT, storage], log)])
    assert (found.verdict, codes(found)) == ("as_expected", {"interface": "note"})
    without_log = judge("nccl", [node(0, [*EIGHT, storage])])
    assert codes(without_log) == {"interface": "problem"}


@pytest.mark.parametrize("amounts", [(100, 100), (100, 85)])
def test_nearly_even_adapters_are_no_finding(amounts) -> None:
    links = [adapter(f"mlx5_{index}/1", amount) for index, amount in enumerate(amounts)]
    assert judge("nccl", [node(0, links, nccl_log("2.23.4-efa"))]).findings == []
