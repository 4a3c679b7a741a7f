"""The ceiling of the bus bandwidth, and the node whose link is slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disttrain.records.node import PreflightBandwidth
from jobs.checks.ceiling import judged_bandwidth, slowest_pair
from jobs.checks.finding import Finding
from jobs.checks.node_facts import NodeFacts
from tests.support.link_rates import ring

NDR_8, TCP = 8 * 400e9 / 8, 12.5e9
"""Rates of a node's links: eight NDR adapters, and 100 GbE."""
LARGE, BUCKET, MIB = 2**30, 25 * 2**20, 2**20


def judged(
    facts: list[dict[str, Any]], measured: float = 1e8, size: int = LARGE, *, backend: str = "nccl",
    rates: Mapping[tuple[int, int], float] | None = None, ranks: int | None = None,
) -> tuple[PreflightBandwidth, list[Finding]]:  # fmt: skip
    """The judgement of an all-reduce between nodes with these facts, on a ring of equal links by default."""
    count = len(facts)
    nodes = [NodeFacts(number, f"n{number}", 0.0, {}, 1, {}, **each) for number, each in enumerate(facts)]
    rates = ring(count, {}) if rates is None else rates
    reduced = {"bytes": size, "bus_bytes_per_s": measured, "seconds": 0.1}
    result = {
        "backend": backend, "ranks": ranks or count, "message_bytes": MIB, "seconds": 1.0,
        "links": [{"source": a, "target": b, "bytes_per_s": rate} for (a, b), rate in rates.items()],
        "all_reduce": [reduced],
    }  # fmt: skip
    record, problems = judged_bandwidth(result, nodes, [node.host for node in nodes])
    return PreflightBandwidth.model_validate(record), problems


@pytest.mark.parametrize(
    ("nodes", "fact", "backend", "size", "measured", "most", "warns"),
    [
        (8, {"link_bytes_per_s": NDR_8}, "nccl", LARGE, 386.6e9, NDR_8, False),  # 8 x H100, NDR 8 x 400
        (2, {"link_bytes_per_s": NDR_8}, "nccl", LARGE, 487e9, 2 * NDR_8, False),  # p5: trees
        (2, {"link_bytes_per_s": NDR_8}, "nccl", LARGE, 250e9, 2 * NDR_8, True),
        (2, {"link_bytes_per_s": TCP}, "gloo", LARGE, 6e9, TCP, False),
        (4, {"link_bytes_per_s": NDR_8}, "nccl", LARGE, 250e9, NDR_8, True),
        (4, {"link_bytes_per_s": NDR_8}, "nccl", BUCKET, 1e9, NDR_8, False),
        (4, {"link_bytes_per_s": TCP}, "nccl", LARGE, 6e9, TCP, True),
        (4, {"link_bytes_per_s": TCP, "tcp": True}, "nccl", LARGE, 1e9, TCP, True),
    ],
)
def test_an_all_reduce_between_nodes_is_judged_as_the_sources_of_the_figures_do(
    nodes, fact, backend, size, measured, most, warns
):
    record, problems = judged([fact] * nodes, measured, size, backend=backend)
    assert (record.ceiling_bytes_per_s, record.gpu_path) == (most, None)
    assert [(each.severity, each.hosts) for each in problems] == [("warning", ())] * warns
    assert all("the slowest link is from n0 to n1 (100.0 MB/s)" in each.problem for each in problems)


def test_the_slowest_node_limits_all_and_an_unknown_rate_judges_nothing():
    facts = [{"link_bytes_per_s": rate} for rate in (NDR_8, TCP, NDR_8)]
    assert judged(facts)[0].ceiling_bytes_per_s == TCP
    assert judged([*facts, {}])[0].node_link_bytes_per_s is None


@pytest.mark.parametrize(
    ("nvlink", "ranks", "measured", "most", "warns"),
    [
        ((450e9, True), 8, 482e9, 787.5e9, False),  # 8 x H200
        ((900e9, False), 8, 682e9, 900e9, False),  # 8 x B200, in rings
        ((450e9, False), 8, 40e9, 450e9, True),  # over PCIe in place of NVLink
        (None, 4, 3e9, None, False),
    ],
)
def test_the_gpus_of_one_node(nvlink, ranks, measured, most, warns):
    record, problems = judged([{"nvlink": nvlink, "link_bytes_per_s": 1e9}], measured, ranks=ranks, rates={})
    assert [each.severity for each in problems] == ["warning"] * warns
    assert (record.gpu_link_bytes_per_s, record.node_link_bytes_per_s) == (nvlink and nvlink[0], None)
    assert (record.ceiling_bytes_per_s, record.not_judged is None) == (most, nvlink is not None)


def slow_node(nodes: int, slow: int) -> Any:
    problem = f"the link of node n{slow} moves 10.0 MB/s, 10% of the usual 100.0 MB/s"
    return (nodes, ring(nodes, {slow: 0.1}), [("error", (f"n{slow}",), problem)])


@pytest.mark.parametrize(
    ("nodes", "rates", "expected"),
    [
        *(slow_node(nodes, slow) for nodes in (3, 4, 8) for slow in (0, 1, 2)),
        (4, ring(4, {1: 0.4}), [("warning", (), "the link of node n1")]),  # other jobs may load it
        (4, ring(4, {}) | {(1, 2): 1e6}, [("warning", (), "the link from n1 to n2")]),
        (4, ring(4, {}), []),
        (2, {(0, 1): 124e6, (1, 0): 15e6}, [("warning", (), "the link from n1 to n0 moves 15.0")]),
        (2, {(0, 1): 124e6, (1, 0): 70e6}, []),
    ],
)  # fmt: skip
def test_a_slow_link_is_that_of_a_node_whose_directions_are_all_slow(nodes, rates, expected):
    _, problems = judged([{}] * nodes, rates=rates)
    assert [(each.severity, each.hosts) for each in problems] == [row[:2] for row in expected]
    assert all(each.problem.startswith(row[2]) for each, row in zip(problems, expected, strict=True))
    assert all(("both nodes" in each.remedy) == (nodes == 2) for each in problems)


@pytest.mark.parametrize(
    ("nodes", "link", "size", "text"),
    [
        (2, None, 16 * MIB, "the link rate is unknown"),
        (2, 125e6, MIB, "no large all-reduce was measured"),  # it would have taken too long
        (2, 125e6, 16 * MIB, None),
        (3, None, 16 * MIB, None),
    ],
)
def test_the_record_of_two_nodes_names_what_was_not_compared(nodes, link, size, text):
    record, problems = judged([{"link_bytes_per_s": link}] * nodes, size=size, backend="gloo")
    assert problems == []
    assert (record.not_judged is None) if text is None else (text in str(record.not_judged))


def test_the_slowest_direction():
    assert slowest_pair({(0, 1): 2e9, (1, 0): 1e9}, ["a", "b"]) == "from b to a (1.0 GB/s)"
