"""The report's section on the network, with records of gloo runs and verdicts from logs of NCCL."""

from __future__ import annotations

from pathlib import Path

from analysis.read.load import load_runs
from analysis.report.section import Section
from analysis.report.sections import fabric
from analysis.study import make_study
from disttrain.records.communication import FabricRecord, NodeFabric
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from tests.support.fabric_nodes import adapter, interface, nccl_log, node
from tests.support.fake_runs import fake_sweep


def section_of(root: Path, backend: str, nodes: list[NodeFabric]) -> Section | None:
    """The section of a sweep whose runs on two nodes used these nodes."""
    sweep = fake_sweep(root, nodes=(1, 2), repeats=2)
    for path in sweep.glob("n2*/metrics.json"):
        record = FabricRecord(attempt=0, backend=backend, nodes=nodes)
        write_json(RunDir(path.parent).attempt(0).fabric, record.model_dump(mode="json"))
    table = load_runs([sweep])
    return fabric.build(make_study(table))


def test_gloo_is_about_interfaces(tmp_path: Path) -> None:
    links = [interface("eth1", 900, expected=True), interface("eth0", 100)]
    found = section_of(tmp_path, "gloo", [node(index, links) for index in range(2)])
    assert found is not None
    assert found.conclusion == (
        "On 2 ranks: gloo has no log; traffic of the measured steps went over eth0, eth1."
    )
    verdicts, traffic = found.tables
    assert [row[1:] for row in verdicts.rows] == [["as expected", "gloo over eth1", 2, 2]]
    assert [(row[0], row[1], row[6]) for row in traffic.rows] == [
        ("node0", "eth1", 0.9),
        ("node0", "eth0", 0.1),
        ("node1", "eth1", 0.9),
        ("node1", "eth0", 0.1),
    ]
    assert [[link.name for link in links] for links in traffic.sources] == [["n2x1-r0"]] * 4


def test_the_problem_of_nccl_comes_first(tmp_path: Path) -> None:
    right = node(0, [adapter(f"mlx5_{number}/1", 100) for number in range(8)], nccl_log("2.18.5-infiniband"))
    wrong = node(1, [adapter("mlx5_0/1", 0), interface("ens7", 400)], nccl_log("2.19.3-sockets"))
    found = section_of(tmp_path, "nccl", [right, wrong])
    assert found is not None
    assert found.conclusion.startswith("On 2 ranks: NCCL connects the nodes by TCP sockets over ens7, ens8")
    assert any("ens7 carried 100% of the bytes of node1" in text for text in found.paragraphs)
    row = found.tables[0].rows[0]
    assert row[1:] == ["problems", "NET/Socket, NET/IB", 3 / 7, "2.18.5", 8, 9]


def test_figures_are_those_of_the_repeat_with_the_worst_verdict(tmp_path: Path) -> None:
    right = [node(index, [interface("eth1", 900, expected=True)]) for index in range(2)]
    wrong = [node(index, [interface("eth1", 0, expected=True), interface("eth0", 7)]) for index in range(2)]
    assert section_of(tmp_path, "gloo", right) is not None
    (path,) = (tmp_path / "default").glob("n2*-r1/metrics.json")
    record = FabricRecord(attempt=0, backend="gloo", nodes=wrong)
    write_json(RunDir(path.parent).attempt(0).fabric, record.model_dump(mode="json"))
    table = load_runs([tmp_path / "default"])
    found = fabric.build(make_study(table))
    assert found is not None
    verdicts, traffic = found.tables
    assert verdicts.rows[0][-2:] == [0, 2]
    assert {row[1] for row in traffic.rows if row[4]} == {"eth0"}


def test_runs_without_a_network_have_no_section(tmp_path: Path) -> None:
    loopback, eth = ([interface(name, 5, expected=True)] for name in ("lo", "eth0"))
    assert section_of(tmp_path / "loopback", "gloo", [node(index, loopback) for index in range(2)]) is None
    assert section_of(tmp_path / "one node", "gloo", [node(0, eth)]) is None
    unsampled = [node(index, expected_adapters=None) for index in range(2)]
    assert section_of(tmp_path / "unsampled", "gloo", unsampled) is None
    table = load_runs([fake_sweep(tmp_path / "old")])
    assert fabric.build(make_study(table)) is None
