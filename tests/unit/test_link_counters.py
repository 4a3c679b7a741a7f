"""Counters of links: which links a node has, which are expected, and what measured steps sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.hardware.link_counters import (
    expected_adapters,
    find_links,
    read_interfaces,
    read_links,
)
from disttrain.hardware.sampler import Links, NodeSamples
from disttrain.records.run_directory import ADAPTERS

HEADER = "Inter-| Receive | Transmit\n face |bytes\n"


def make_node(
    root: Path, adapters: dict[str, str] | None = None, interfaces: dict[str, int] | None = None
) -> Path:
    """A root with RDMA devices (name to rate) and interfaces (name to bytes received; twice as many sent)."""
    for name, rate in (adapters or {}).items():
        port = root / "sys/class/infiniband" / name / "ports/1"
        (port / "counters").mkdir(parents=True)
        state = "1: DOWN" if rate == "down" else "4: ACTIVE"
        files = {
            "state": state,
            "rate": rate,
            "counters/port_xmit_data": "1000",
            "counters/port_rcv_data": "500",
        }
        for file, text in files.items():
            (port / file).write_text(f"{text}\n")
    lines = [
        f"  {name}: {count} 1 0 0 0 0 0 0 {2 * count} 1 0 0 0 0 0 0\n"
        for name, count in (interfaces or {}).items()
    ]
    (root / "proc/self/net").mkdir(parents=True)
    (root / "proc/self/net/dev").write_text(HEADER + "".join(lines))
    return root


NDR, EDR = "400 Gb/sec (4X NDR)", "100 Gb/sec (4X EDR)"


def expected(root: Path, backend: str, **environ: str) -> list[str]:
    return [link.name for link in find_links(backend, environ, root) if link.expected]


def test_active_ports_of_the_highest_rate_are_expected_with_nccl(tmp_path: Path) -> None:
    adapters = {"mlx5_0": NDR, "mlx5_1": NDR, "mlx5_2": EDR, "mlx5_3": "down"}
    root = make_node(tmp_path, adapters, {"lo": 1, "eth0": 1})
    assert expected(root, "nccl") == ["mlx5_0/1", "mlx5_1/1"]
    assert expected(root, "nccl", NCCL_IB_HCA="=mlx5_1,mlx5_3") == ["mlx5_1/1"]
    assert expected(root, "nccl", NCCL_IB_HCA="^mlx5_0") == ["mlx5_1/1"]
    assert expected(root, "nccl", NCCL_IB_HCA="mlx5_0:2") == []
    assert expected(root, "nccl", NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="eth") == ["eth0"]
    names = [link.name for link in find_links("nccl", {}, root)]
    assert names == ["mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "eth0"]


def test_the_ports_that_the_agent_has_chosen_are_expected(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": EDR, "mlx5_1": NDR}, {"eth0": 1})
    assert expected(root, "nccl", **{ADAPTERS: "mlx5_0/1,cxi0/1"}) == ["mlx5_0/1"], "not the fastest"
    tcp = {ADAPTERS: "", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert expected(root, "nccl", **tcp) == ["eth0"]
    slingshot = {ADAPTERS: "cxi0/1", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert expected(root, "nccl", **slingshot) == [], "its traffic has no counter"
    assert expected(root, "gloo", **{ADAPTERS: "mlx5_0/1"}) == []


def test_adapters_are_expected_without_a_counter(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR, "mlx5_1": NDR, "mlx5_2": EDR}, {"eth0": 1})
    for name in ("mlx5_1", "mlx5_2"):
        (root / f"sys/class/infiniband/{name}/ports/1/counters/port_xmit_data").unlink()
    assert [link.name for link in find_links("nccl", {}, root)] == ["mlx5_0/1", "eth0"]
    assert expected_adapters("nccl", {}, root) == ["mlx5_0/1", "mlx5_1/1"]
    assert expected_adapters("nccl", {ADAPTERS: "cxi0/1,cxi1/1"}, root) == ["cxi0/1", "cxi1/1"]
    assert expected_adapters("nccl", {ADAPTERS: ""}, root) == []
    assert expected_adapters("nccl", {"NCCL_IB_DISABLE": "1"}, root) == []
    assert expected_adapters("gloo", {}, root) == []


def test_the_named_interfaces_are_expected_with_gloo(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR}, {"lo": 1, "eth0": 1, "ib0": 1})
    assert expected(root, "gloo", GLOO_SOCKET_IFNAME="ib0") == ["ib0"]
    assert expected(root, "gloo", GLOO_SOCKET_IFNAME="lo") == ["lo"]
    assert expected(root, "gloo") == []


def test_a_bond_is_counted_by_its_members(tmp_path: Path) -> None:
    root = make_node(tmp_path, interfaces={"bond0": 1, "eth0": 1, "eth1": 1})
    (root / "sys/class/net/bond0/lower_eth0").mkdir(parents=True)
    assert [link.name for link in find_links("gloo", {}, root)] == ["eth0", "eth1"]


def test_counters_of_ports_are_words_and_those_of_efa_bytes(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR}, {"eth0": 7})
    efa = root / "sys/class/infiniband/rdmap0/ports/1"
    (efa / "hw_counters").mkdir(parents=True)
    for file, text in {
        "state": "4: ACTIVE",
        "hw_counters/tx_bytes": "10",
        "hw_counters/rx_bytes": "20",
    }.items():
        (efa / file).write_text(text)
    links = find_links("nccl", {}, root)
    found = {name: (*each.values(),) for name, each in read_links(links, root).items()}
    assert found == {"mlx5_0/1": (4000, 2000), "rdmap0/1": (10, 20), "eth0": (14, 7)}
    assert links[0].line_rate_bytes_per_s == 50e9


def test_the_interfaces_of_this_process_are_found() -> None:
    assert "lo" in read_interfaces()


def test_only_growth_within_a_segment_counts(tmp_path: Path) -> None:
    root = make_node(tmp_path, interfaces={"eth0": 1})
    samples = NodeSamples()
    links = Links("gloo", samples, root)
    counts = [(None, 100), (0, 150), (0, 250), (None, 900), (1, 1000), (1, 1010), (1, 3)]
    for second, (segment, count) in enumerate(counts):
        sample = {"at_s": float(second), "sent_bytes": count, "received_bytes": 2 * count}
        samples.links[0].add(links.fields, sample, segment)
    assert [samples.links[0].grown(name) for name in ("sent_bytes", "received_bytes")] == [110, 220]


@pytest.mark.parametrize("missing", ["eth0", "mlx5_0/1"])
def test_a_link_that_goes_away_leaves_the_others(tmp_path: Path, missing: str) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR}, {"eth0": 1})
    samples = NodeSamples()
    reader = Links("nccl", samples, root)
    assert len(reader.read()) == len(samples.links) == 2
    if missing == "eth0":
        (root / "proc/self/net/dev").write_text(HEADER)
    else:
        (root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data").unlink()
    assert [each.name for each, _ in reader.read()] == [
        name for name in ("mlx5_0/1", "eth0") if name != missing
    ]
