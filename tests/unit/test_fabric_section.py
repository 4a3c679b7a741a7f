"""The report's section on the network: the repeat with the worst verdict, and links with traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from analysis.report.section import Section
from analysis.report.sections.network import fabric
from analysis.study import make_study
from disttrain.records.communication import FabricRecord, NodeFabric
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from tests.support.fabric_nodes import adapter, interface, nccl_log, node
from tests.support.studies import rows_of, runs_of

GOOD = [node(index, [interface("eth1", 900, expected=True), interface("eth0", 100)]) for index in range(2)]
BAD = [node(index, [interface("eth1", 0, expected=True), interface("eth0", 7)]) for index in range(2)]


def section_of(root: Path, nodes: Mapping[str, list[NodeFabric]], backend: str = "gloo") -> Section | None:
    """The section on two repeats of two and of four nodes, of which those named used such nodes."""
    runs = [replace(run, folder=RunDir(root / "s" / run.name)) for run in runs_of(nodes=(2, 4), repeats=2)]
    for run in runs:
        if run.name in nodes:
            record = FabricRecord(attempt=0, backend=backend, nodes=nodes[run.name])
            write_json(run.folder.attempt(0).fabric, record.model_dump(mode="json"))
    return fabric(make_study(runs))


def test_links_are_listed_by_node_busiest_first(tmp_path: Path) -> None:
    section = section_of(tmp_path, {"n2x1-r0": GOOD})
    assert section is not None
    assert section.conclusion.startswith("On 2 ranks: gloo has no log; ")
    (row,) = rows_of(section)
    assert (row["verdict"], row["transport"]) == ("as expected", "gloo over eth1")
    assert (row["links_used"], row["links_expected"]) == (2, 2)
    links = [(link["node"], link["link"], link["share"]) for link in rows_of(section, "fabric_links")]
    assert links == [
        (f"node{at}", name, share) for at in (0, 1) for name, share in (("eth1", 0.9), ("eth0", 0.1))
    ]
    assert {run.name for runs in section.tables[1].sources for run in runs} == {"n2x1-r0"}


def test_the_repeat_with_the_worst_verdict_counts_and_of_equal_ones_the_largest_size(tmp_path: Path) -> None:
    good = {f"n{nodes}x1-r{repeat}": GOOD for nodes in (2, 4) for repeat in (0, 1)}
    section = section_of(tmp_path / "good", good)
    assert section is not None
    assert section.conclusion.startswith("On 4 ranks: ")
    section = section_of(tmp_path / "bad", good | {"n2x1-r1": BAD})
    assert section is not None
    assert section.conclusion.startswith("On 2 ranks: ")
    assert [row["links_used"] for row in rows_of(section)] == [0, 2]
    sent = {row["link"] for row in rows_of(section, "fabric_links") if row["sent"]}
    assert sent == {"eth0"}


def test_the_problem_of_nccl_comes_first_with_the_nodes_that_have_it(tmp_path: Path) -> None:
    right = node(0, [adapter(f"mlx5_{number}/1", 100) for number in range(8)], nccl_log("2.18.5-infiniband"))
    wrong = node(1, [adapter("mlx5_0/1", 0), interface("ens7", 400)], nccl_log("2.19.3-sockets"))
    section = section_of(tmp_path, {"n2x1-r0": [right, wrong]}, "nccl")
    assert section is not None
    assert section.conclusion.startswith("On 2 ranks: NCCL connects the nodes by TCP sockets over ens7, ens8")
    assert any("of node1" in text and text.endswith("(2 ranks).") for text in section.paragraphs)
    (row,) = rows_of(section)
    assert (row["verdict"], row["transport"]) == ("problems", "NET/Socket, NET/IB")
    assert (row["gpudirect"], row["nccl"], row["links_used"], row["links_expected"]) == (
        3 / 7,
        "2.18.5",
        8,
        9,
    )


def test_runs_without_a_network_have_no_section(tmp_path: Path) -> None:
    loopback = [node(index, [interface("lo", 5, expected=True)]) for index in range(2)]
    unsampled = [node(index, expected_adapters=None) for index in range(2)]
    for name, nodes in (("lo", loopback), ("one", GOOD[:1]), ("unsampled", unsampled), ("none", None)):
        assert section_of(tmp_path / name, {"n2x1-r0": nodes} if nodes else {}) is None, name
