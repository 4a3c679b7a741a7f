"""Links of a node: which ones it has, which are expected, and their counters."""

import pytest

from disttrain.hardware.links import find_links
from disttrain.hardware.node_sampler import Links, LocalRank, Node
from disttrain.records.run_directory import ADAPTERS, Attempt

NDR, EDR = "400 Gb/sec (4X NDR)", "100 Gb/sec (4X EDR)"
COUNTERS = {"counters/port_xmit_data": 1000, "counters/port_rcv_data": 500}


def write(folder, files):
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{value}\n")


def write_port(root, name, rate, counters=COUNTERS, state="4: ACTIVE"):
    files = {"state": state, "rate": rate, **counters}
    write(root / f"sys/class/infiniband/{name}/ports/1", files)


def write_interfaces(root, **received):
    """Interfaces with bytes received; twice as many sent."""
    table = "Inter-| Receive | Transmit\n face |bytes\n"
    for name, count in received.items():
        table += f"{name:>6}: {count} 1 0 0 0 0 0 0 {2 * count} 1 0 0 0 0 0 0\n"
    write(root / "proc/self/net", {"dev": table})


@pytest.fixture
def root(tmp_path):
    """A node with RDMA ports, one without a counter and one that is down, a bond of two interfaces, and an
    interface of another network namespace."""
    write_port(tmp_path, "mlx5_0", NDR)
    write_port(tmp_path, "mlx5_1", NDR, counters={})
    write_port(tmp_path, "mlx5_2", EDR)
    write_port(tmp_path, "mlx5_3", NDR, state="1: DOWN")
    write_interfaces(tmp_path, lo=1, eth0=7, eth1=1, bond0=1)
    (tmp_path / "sys/class/net/bond0/lower_eth0").mkdir(parents=True)
    write(tmp_path / "sys/class/net/eth9/statistics", {"rx_bytes": 1, "tx_bytes": 1})
    write(tmp_path / "sys/class/net/eth1", {"speed": 10_000, "device/vendor": "0x15b3"})
    return tmp_path


def test_links_are_active_ports_with_a_counter_and_interfaces_that_carry_others(root):
    links, _ = find_links("nccl", {}, root)
    assert [link.name for link in links] == ["mlx5_0/1", "mlx5_2/1", "eth0", "eth1"]


@pytest.mark.parametrize(
    ("backend", "environ", "ports", "expected"),
    [
        ("nccl", {}, ["mlx5_0/1", "mlx5_1/1"], ["mlx5_0/1"]),
        ("nccl", {"NCCL_IB_HCA": "=mlx5_0,mlx5_3"}, ["mlx5_0/1"], ["mlx5_0/1"]),
        ("nccl", {"NCCL_IB_HCA": "^mlx5_0,mlx5_1"}, ["mlx5_2/1"], ["mlx5_2/1"]),
        ("nccl", {"NCCL_IB_HCA": "mlx5_0:2"}, [], []),
        ("nccl", {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth"}, [], ["eth0", "eth1"]),
        ("nccl", {"NCCL_SOCKET_IFNAME": "eth"}, ["mlx5_0/1", "mlx5_1/1"], ["mlx5_0/1"]),
        ("nccl", {ADAPTERS: "cxi0/1,mlx5_2/1"}, ["cxi0/1", "mlx5_2/1"], ["mlx5_2/1"]),  # not the fastest
        ("nccl", {ADAPTERS: "cxi0/1", "NCCL_SOCKET_IFNAME": "=eth0"}, ["cxi0/1"], []),
        ("nccl", {ADAPTERS: "", "NCCL_SOCKET_IFNAME": "=eth0"}, [], ["eth0"]),
        ("gloo", {ADAPTERS: "mlx5_0/1"}, [], []),
        ("gloo", {"GLOO_SOCKET_IFNAME": "eth1"}, [], ["eth1"]),
        ("gloo", {"GLOO_SOCKET_IFNAME": "lo"}, [], ["lo"]),
    ],
)
def test_links_that_the_backend_should_use(root, backend, environ, ports, expected):
    links, chosen = find_links(backend, environ, root)
    assert (chosen, [link.name for link in links if link.expected]) == (ports, expected)


def source(root):
    return Links(Node(Attempt(root, 0), [LocalRank(0, 0, 0, (), 0.0)], 1.0, backend="nccl"), root)


def test_counters_of_ports_are_words_and_those_of_efa_and_interfaces_bytes(root, monkeypatch):
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    write_port(root, "rdmap0", "", {"hw_counters/tx_bytes": 10, "hw_counters/rx_bytes": 20})
    samples = {
        device.name: (sample["sent_bytes"], sample["received_bytes"], device.constants)
        for device, sample in source(root).read()
    }
    names = ("kind", "expected", "line_rate_bytes_per_s")
    constants = {
        "mlx5_0/1": ("adapter", False, 50e9), "mlx5_2/1": ("adapter", False, 12.5e9),
        "rdmap0/1": ("adapter", True, None),  # EFA, which NCCL_IB_DISABLE leaves on
        "eth0": ("interface", False, None), "eth1": ("interface", False, 1.25e9),
    }  # fmt: skip
    counts = [(4000, 2000), (4000, 2000), (10, 20), (14, 7), (2, 1)]
    assert samples == {
        name: (*count, dict(zip(names, values, strict=True)))
        for (name, values), count in zip(constants.items(), counts, strict=True)
    }


def test_only_growth_within_a_segment_counts(root):
    links = source(root)
    device, _ = links.read()[0]
    counts = [(None, 100), (0, 150), (0, 250), (None, 900), (1, 1000), (1, 1010), (1, 3)]
    for second, (segment, count) in enumerate(counts):
        sample = {"at_s": float(second), "sent_bytes": count, "received_bytes": 2 * count}
        device.add(links.fields, sample, segment)
    assert [device.grown(name) for name in ("sent_bytes", "received_bytes")] == [110, 220]


def test_a_link_that_goes_away_leaves_the_others(root):
    links = source(root)
    (root / "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data").unlink()
    write_interfaces(root, eth0=9)
    assert [sample["received_bytes"] for _, sample in links.read()] == [None, 2000, 9, None]
