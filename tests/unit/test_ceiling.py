"""The ceiling of the bus bandwidth, and the node whose link is slow."""

from __future__ import annotations

import pytest

from disttrain.records.node import PreflightBandwidth
from jobs.checks import ceiling
from jobs.checks.ceiling import judged_bandwidth
from jobs.checks.node_facts import NodeFacts
from tests.support.link_rates import ring

NDR_8 = 8 * 400e9 / 8
LARGE = 2**30


def test_two_nodes_have_a_ceiling_of_their_own() -> None:
    two, four = (ceiling.ceiling(nodes, NDR_8, "nccl") for nodes in (2, 4))
    assert two is not None
    assert four is not None
    assert (four.most, two.most) == (NDR_8, 2 * NDR_8)
    assert two.warn_below == four.warn_below
    assert ceiling.ceiling(2, NDR_8, "gloo").most == NDR_8  # type: ignore[union-attr]


def test_nccl_over_tcp_is_not_expected_to_reach_the_rate_of_the_link() -> None:
    for tcp, warnings in ((True, 0), (False, 1)):
        limits = ceiling.ceiling(4, 12.5e9, "nccl", tcp=tcp)
        assert len(ceiling.all_reduce_problems(limits, LARGE, 6e9, None)) == warnings
        facts = [
            NodeFacts(node, f"n{node}", 0.0, {}, 1, {}, link_bytes_per_s=12.5e9, tcp=tcp) for node in range(4)
        ]
        reduced = [{"bytes": LARGE, "bus_bytes_per_s": 6e9}]
        result = {"backend": "nccl", "links": [], "all_reduce": reduced}
        assert len(judged_bandwidth(result, facts, "abcd")[1]) == warnings
    limits = ceiling.ceiling(4, 12.5e9, "nccl", tcp=True)
    assert len(ceiling.all_reduce_problems(limits, LARGE, 1e9, None)) == 1


@pytest.mark.parametrize(
    ("nodes", "measured", "verdict"),
    [
        (8, 386.6e9, None),  # 8 x H100, NDR 8 x 400
        (2, 487e9, None),  # p5, two nodes: above the rate of the links
        (4, 250e9, "warning"),
        (4, 5.4e9, "warning"),  # TCP in place of the fabric: names no node
    ],
)
def test_published_figures_are_judged_as_their_sources_do(
    nodes: int, measured: float, verdict: str | None
) -> None:
    limits = ceiling.ceiling(nodes, NDR_8, "nccl")
    found = ceiling.all_reduce_problems(limits, LARGE, measured, "from a to b (1 GB/s)")
    assert [each.severity for each in found] == ([verdict] if verdict else [])
    assert all("slowest link is from a to b" in each.problem for each in found)


def test_nothing_is_judged_without_a_known_link_nor_at_the_bucket_size() -> None:
    assert ceiling.ceiling(4, None, "nccl") is None
    assert ceiling.ceiling(1, NDR_8, "nccl") is None
    limits = ceiling.ceiling(4, NDR_8, "nccl")
    assert ceiling.all_reduce_problems(limits, 25 * 2**20, 1e9, None) == []


@pytest.mark.parametrize(
    ("nvlink", "ranks", "measured", "warnings"),
    [
        ((450e9, True), 8, 482e9, 0),  # 8 x H200
        ((450e9, True), 8, 363e9, 0),  # in rings
        ((300e9, False), 8, 235e9, 0),  # 8 x A100
        ((900e9, False), 8, 682e9, 0),  # 8 x B200, in rings
        ((450e9, False), 8, 40e9, 1),  # over PCIe in place of NVLink
        (None, 4, 3e9, 0),
    ],
)
def test_the_gpus_of_one_node(
    nvlink: tuple[float, bool] | None, ranks: int, measured: float, warnings: int
) -> None:
    own = NodeFacts(0, "n0", 0.0, {}, 1, {}, nvlink=nvlink, link_bytes_per_s=1e9)
    reduced = [
        {"bytes": 25 * 2**20, "bus_bytes_per_s": measured / 3, "seconds": 1.0},
        {"bytes": LARGE, "bus_bytes_per_s": measured, "seconds": 1.0},
    ]
    result = {
        "backend": "nccl", "links": [], "all_reduce": reduced,
        "ranks": ranks, "message_bytes": 2**20, "seconds": 1.0,
    }  # fmt: skip
    record, problems = judged_bandwidth(result, [own], ["n0"])
    assert [each.severity for each in problems] == ["warning"] * warnings
    found = PreflightBandwidth.model_validate(record)
    assert (found.gpu_link_bytes_per_s, found.node_link_bytes_per_s) == (nvlink and nvlink[0], None)
    assert (found.not_judged is None) == (nvlink is not None)
    assert (found.floor_bytes_per_s is None) == (nvlink is None)
    assert found.ceiling_bytes_per_s is None or found.ceiling_bytes_per_s >= measured


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_node_on_a_slow_link_is_named(nodes: int, slow: int) -> None:
    hosts = [f"n{node}" for node in range(nodes)]
    (found,) = ceiling.link_problems(ring(nodes, {slow: 0.1}), hosts)
    assert (found.hosts, found.severity) == ((f"n{slow}",), "error")
    assert f"the link of node n{slow} moves 10.0 MB/s, 10% of the usual 100.0 MB/s" in found.problem


def test_a_half_loaded_link_is_a_warning_and_excludes_no_node() -> None:
    (found,) = ceiling.link_problems(ring(4, {1: 0.4}), ["a", "b", "c", "d"])
    assert (found.hosts, found.severity) == ((), "warning")
    assert "node b" in found.problem


def test_one_slow_direction_is_that_of_no_node() -> None:
    rates = ring(4, {}) | {(1, 2): 1e6}
    (found,) = ceiling.link_problems(rates, ["a", "b", "c", "d"])
    assert (found.hosts, found.severity) == ((), "warning")
    assert "the link from b to c" in found.problem


def test_of_two_nodes_a_slow_direction_is_a_warning() -> None:
    (found,) = ceiling.link_problems({(0, 1): 124e6, (1, 0): 15.5e6}, ["a", "b"])
    assert (found.hosts, found.severity) == ((), "warning")
    assert (
        found.problem == "the link from b to a moves 15.5 MB/s, 12% of the 124.0 MB/s of the other direction"
    )
    assert "both nodes" in found.remedy
    assert ceiling.link_problems({(0, 1): 124e6, (1, 0): 70e6}, ["a", "b"]) == []


@pytest.mark.parametrize(
    ("nodes", "link", "size", "text"),
    [
        (2, None, 2**24, "the link rate is unknown"),
        (2, 125e6, 2**20, "no large all-reduce was measured"),  # it would have taken too long
        (2, 125e6, 2**24, None),
        (3, None, 2**24, None),
    ],
)
def test_the_record_of_two_nodes_names_what_was_not_compared(
    nodes: int, link: float | None, size: int, text: str | None
) -> None:
    hosts = [f"n{node}" for node in range(nodes)]
    facts = [NodeFacts(node, host, 0.0, {}, 1, {}, link_bytes_per_s=link) for node, host in enumerate(hosts)]
    links = [
        {"source": source, "target": target, "bytes_per_s": rate}
        for (source, target), rate in ring(nodes, {}).items()
    ]
    reduced = [{"bytes": size, "bus_bytes_per_s": 1e8, "seconds": 0.1}]
    result = {
        "backend": "gloo", "links": links, "all_reduce": reduced,
        "ranks": nodes, "message_bytes": 2**20, "seconds": 1.0,
    }  # fmt: skip
    record, problems = judged_bandwidth(result, facts, hosts)
    assert problems == []
    found = PreflightBandwidth.model_validate(record).not_judged
    assert found is None if text is None else text in str(found)


def test_two_nodes_and_equal_links_name_none() -> None:
    assert ceiling.link_problems(ring(2, {0: 0.1}), ["a", "b"]) == []
    assert ceiling.link_problems(ring(4, {}), ["a", "b", "c", "d"]) == []
    assert ceiling.slowest_pair({(0, 1): 2e9, (1, 0): 1e9}, ["a", "b"]) == "from b to a (1.0 GB/s)"
