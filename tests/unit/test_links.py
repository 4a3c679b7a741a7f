"""Counters of links: which links a node has, which are expected, and what measured steps sent."""

from __future__ import annotations

from pathlib import Path

from disttrain.hardware.links import find_links
from disttrain.hardware.node_sampler import Links, LocalRank, Node
from disttrain.records.run_directory import ADAPTERS, Attempt


def make_node(
    root: Path, adapters: dict[str, str] | None = None, interfaces: dict[str, int] | None = None
) -> Path:
    """A root with RDMA devices (name to rate) and interfaces (name to bytes received; twice as many sent)."""
    for name, rate in (adapters or {}).items():
        state = "1: DOWN" if rate == "down" else "4: ACTIVE"
        counters = {"counters/port_xmit_data": 1000, "counters/port_rcv_data": 500}
        write(root / f"sys/class/infiniband/{name}/ports/1", {"state": state, "rate": rate, **counters})
    table = "Inter-| Receive | Transmit\n face |bytes\n"
    for name, count in (interfaces or {}).items():
        table += f"{name:>6}: {count} 1 0 0 0 0 0 0 {2 * count} 1 0 0 0 0 0 0\n"
    write(root / "proc/self/net", {"dev": table})
    # in a network namespace without a `/sys` of its own, that has the interfaces of another one
    write(root / "sys/class/net/eth9/statistics", {"rx_bytes": 1, "tx_bytes": 1})
    return root


def write(folder: Path, files: dict[str, object]) -> None:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")


def links(root: Path, backend: str = "gloo") -> Links:
    return Links(Node(Attempt(root, 0), [LocalRank(0, 0, 0, (), 0.0)], 1.0, backend=backend), root)


def names(root: Path, backend: str = "nccl") -> list[str]:
    return [link.name for link in find_links(backend, {}, root)[0]]


NDR, EDR = "400 Gb/sec (4X NDR)", "100 Gb/sec (4X EDR)"


def expected(root: Path, backend: str, **environ: str) -> list[str]:
    return [link.name for link in find_links(backend, environ, root)[0] if link.expected]


def test_active_ports_of_the_highest_rate_are_expected_with_nccl(tmp_path: Path) -> None:
    adapters = {"mlx5_0": NDR, "mlx5_1": NDR, "mlx5_2": EDR, "mlx5_3": "down"}
    root = make_node(tmp_path, adapters, {"lo": 1, "eth0": 1})
    assert expected(root, "nccl") == ["mlx5_0/1", "mlx5_1/1"]
    assert expected(root, "nccl", NCCL_IB_HCA="=mlx5_1,mlx5_3") == ["mlx5_1/1"]
    assert expected(root, "nccl", NCCL_IB_HCA="^mlx5_0") == ["mlx5_1/1"]
    assert expected(root, "nccl", NCCL_IB_HCA="mlx5_0:2") == []
    assert expected(root, "nccl", NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="eth") == ["eth0"]
    assert names(root) == ["mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "eth0"]


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
    assert names(root) == ["mlx5_0/1", "eth0"]
    for environ, adapters in (
        ({}, ["mlx5_0/1", "mlx5_1/1"]),
        ({ADAPTERS: "cxi0/1,cxi1/1"}, ["cxi0/1", "cxi1/1"]),
        ({ADAPTERS: ""}, []),
        ({"NCCL_IB_DISABLE": "1"}, []),
    ):
        assert find_links("nccl", environ, root)[1] == adapters
    assert find_links("gloo", {}, root)[1] == []


def test_the_named_interfaces_are_expected_with_gloo(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR}, {"lo": 1, "eth0": 1, "ib0": 1})
    assert expected(root, "gloo", GLOO_SOCKET_IFNAME="ib0") == ["ib0"]
    assert expected(root, "gloo", GLOO_SOCKET_IFNAME="lo") == ["lo"]
    assert expected(root, "gloo") == []


def test_a_bond_is_counted_by_its_members(tmp_path: Path) -> None:
    root = make_node(tmp_path, interfaces={"bond0": 1, "eth0": 1, "eth1": 1})
    (root / "sys/class/net/bond0/lower_eth0").mkdir(parents=True)
    assert names(root, "gloo") == ["eth0", "eth1"]


def test_counters_of_ports_are_words_and_those_of_efa_and_interfaces_bytes(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR}, {"eth0": 7})
    efa = {"state": "4: ACTIVE", "hw_counters/tx_bytes": 10, "hw_counters/rx_bytes": 20}
    write(root / "sys/class/infiniband/rdmap0/ports/1", efa)
    samples = {
        device.name: (sample["sent_bytes"], sample["received_bytes"], device.constants)
        for device, sample in links(root, "nccl").read()
    }
    adapter = {"kind": "adapter", "expected": True, "line_rate_bytes_per_s": 50e9}
    plain = {"expected": False, "line_rate_bytes_per_s": None}
    assert samples == {
        "mlx5_0/1": (4000, 2000, adapter),
        "rdmap0/1": (10, 20, {**plain, "kind": "adapter"}),
        "eth0": (14, 7, {**plain, "kind": "interface"}),
    }


def test_only_growth_within_a_segment_counts(tmp_path: Path) -> None:
    source = links(make_node(tmp_path, interfaces={"eth0": 1}))
    [(device, _)] = source.read()
    counts = [(None, 100), (0, 150), (0, 250), (None, 900), (1, 1000), (1, 1010), (1, 3)]
    for second, (segment, count) in enumerate(counts):
        sample = {"at_s": float(second), "sent_bytes": count, "received_bytes": 2 * count}
        device.add(source.fields, sample, segment)
    assert [device.grown(name) for name in ("sent_bytes", "received_bytes")] == [110, 220]


def test_a_link_that_goes_away_leaves_the_others(tmp_path: Path) -> None:
    root = make_node(tmp_path, {"mlx5_0": NDR}, {"eth0": 1})
    source = links(root, "nccl")
    (root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data").unlink()
    assert [sample["received_bytes"] for _, sample in source.read()] == [None, 1]
    write(root / "proc/self/net", {"dev": "Inter-|\n face |\n"})
    assert [sample["received_bytes"] for _, sample in source.read()] == [None, None]
