"""File trees of nodes with various networks: `tree("ndr", folder)` builds one for `jobs.fabric.detect`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.fabric_tree_builder import (
    A100,
    AMAZON,
    CONNECTX5,
    CONNECTX6,
    CONNECTX6_DX,
    CRAY,
    GH200,
    H100,
    H200,
    INTEL,
    L40S,
    MELLANOX,
    NAMES,
    Tree,
    at_root,
    below_switch,
)

_SWITCHES = (0x10, 0x30, 0x50, 0x70, 0x90, 0xA0, 0xB0, 0xD0)
"""Bus of the root port above each of eight switches, four on each NUMA node."""


def _eight_gpus(t: Tree, device: str, path: str = "NV18") -> None:
    for index, bus in enumerate(_SWITCHES):
        t.gpu(below_switch(bus, bus + 3, 0), device, node=index // 4)
    t.write_nvml([f"0000:{bus + 3:02x}:00.0" for bus in _SWITCHES], path, NAMES[device])


def ndr(t: Tree, *, dead: Sequence[int] = (), half_rate: Sequence[int] = ()) -> None:
    """Eight H100, each behind a switch with an NDR adapter of 400 Gbit/s; management by 100 GbE."""
    t.machine("Supermicro", "SYS-821GE-TNHR", driver="550.54.15")
    _eight_gpus(t, H100)
    for index, bus in enumerate(_SWITCHES):
        port = {"rate": "400 Gb/sec (4X NDR)"}
        if index in dead:
            port = {"rate": "10 Gb/sec (4X SDR)", "state": "1: DOWN", "physical": "2: Polling"}
        if index in half_rate:
            port = {"rate": "200 Gb/sec (2X NDR)"}
        t.hca(f"mlx5_{index}", below_switch(bus, bus + 4, 1), node=index // 4, **port)
    t.ethernet("eth0", at_root(0x01), 100_000)
    t.nccl("2.27.5")


def dead_hca(t: Tree) -> None:
    """`ndr` with one port down and one at half its rate."""
    ndr(t, dead=[3], half_rate=[6])


def all_down(t: Tree) -> None:
    """`ndr` with all ports down."""
    ndr(t, dead=range(8))


def hdr_mixed(t: Tree) -> None:
    """DGX A100: eight HDR adapters for computing, and two for storage, one of them at the same rate."""
    t.machine("NVIDIA", "DGXA100 920-23687-2530-000", driver="535.129.03")
    _eight_gpus(t, A100, "NV12")
    for index, bus in enumerate(_SWITCHES):
        t.hca(
            f"mlx5_{index}",
            below_switch(bus, bus + 4, 1),
            "200 Gb/sec (4X HDR)",
            device=CONNECTX6,
            node=index // 4,
            board="MT_0000000223",
            interface=f"ib{index}",
        )
    storage = {"device": CONNECTX6, "board": "MT_0000000224"}
    t.hca("mlx5_8", at_root(0xE0), "200 Gb/sec (4X HDR)", node=1, interface="ib8", **storage)
    t.hca("mlx5_9", at_root(0xE8), "100 Gb/sec (4X EDR)", node=1, interface="ib9", **storage)
    t.ethernet("enp226s0", at_root(0xE2), 25_000)
    t.nccl("2.21.5")
    t.write("/etc/nccl.conf", "# of the image\nNCCL_IB_TIMEOUT=22\n\nNCCL_DEBUG=WARN")


def roce_bond(t: Tree) -> None:
    """Four RoCE adapters of 200 Gbit/s, and a bond of two ports of 25 GbE that has the default route."""
    t.machine("Dell Inc.", "PowerEdge XE8545", lock="65536", driver="550.54.15")
    for index, bus in enumerate(_SWITCHES[::2]):
        t.gpu(below_switch(bus, bus + 3, 0), A100, node=index // 2)
        _roce(t, f"mlx5_{index}", below_switch(bus, bus + 4, 1), "200 Gb/sec (4X HDR)", f"eth{index + 2}")
    t.write_nvml([f"0000:{bus + 3:02x}:00.0" for bus in _SWITCHES[::2]], "NV12", NAMES[A100])
    members = [
        t.device(
            [*at_root(0xE0)[:2], f"0000:e1:00.{port}"],
            vendor=MELLANOX,
            device=CONNECTX5,
            kind="0x020000",
            driver="mlx5_core",
        )
        for port in (0, 1)
    ]
    t.interface("bond0", None, speed=50_000)
    t.write("/sys/devices/virtual/net/bond0/bonding/slaves", "ens1f0 ens1f1")
    t.write("/sys/class/net/bonding_masters", "bond0")
    for name, pci in zip(("ens1f0", "ens1f1"), members, strict=True):
        t.interface(name, pci, speed=25_000, master="bond0")
    gids = _roce_gids("0a000107", "bond0")
    t.rdma("mlx5_bond_0", members[0], "25 Gb/sec (1X EDR)", layer="Ethernet", gids=gids)
    t.default_route("bond0")
    t.nccl("2.20.5")


def _roce(t: Tree, name: str, above: Sequence[str], rate: str, interface: str) -> None:
    pci = t.device(above, vendor=MELLANOX, device=CONNECTX6_DX, kind="0x020000", driver="mlx5_core")
    gids = _roce_gids("0a010207", interface)
    t.rdma(name, pci, rate, "MT_0000000359", layer="Ethernet", gids=gids)
    t.interface(interface, pci, speed=200_000, mtu=9000)


def _roce_gids(address: str, interface: str) -> list[tuple[str, str, str]]:
    local = "fe80:0000:0000:0000:0a00:27ff:fe4e:66a1"
    mapped = f"0000:0000:0000:0000:0000:ffff:{address[:4]}:{address[4:]}"
    kinds = ("IB/RoCE v1", "RoCE v2")
    return [(gid, kind, interface) for gid in (local, mapped) for kind in kinds]


def efa_p5(t: Tree) -> None:
    """AWS p5.48xlarge: eight H100 with four EFA of 100 Gbit/s each, and one ENA."""
    t.machine("Amazon EC2", "p5.48xlarge", driver="550.54.15")
    gpus = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)
    for index, bus in enumerate(gpus):
        root = [f"pci0000:{bus - 15:02x}", f"0000:{bus - 15:02x}:00.0", f"0000:{bus - 14:02x}:00.0"]
        t.gpu([*root, f"0000:{bus - 13:02x}:04.0", f"0000:{bus:02x}:00.0"], H100, node=index // 4)
        for card in range(4):
            number = bus - 4 + card
            pci = t.device(
                [*root, f"0000:{bus - 13:02x}:{card:02x}.0", f"0000:{number:02x}:00.0"],
                vendor=AMAZON,
                device="0xefa2",
                kind="0x020000",
                node=index // 4,
                driver="efa",
            )
            t.rdma(f"rdmap{number}s0", pci, "100 Gb/sec (4X EDR)", layer="Unspecified")
    t.write_nvml([f"0000:{bus:02x}:00.0" for bus in gpus], "NV18")
    pci = t.device(at_root(0x40), vendor=AMAZON, device="0xec20", kind="0x020000", driver="ena")
    t.interface("enp65s0", pci, speed=None, mtu=9001)
    t.default_route("enp65s0")
    t.write(
        "/opt/amazon/efa_installed_packages",
        "# EFA installer version: 1.37.0\n# Debug packages installed: no\n# Packages installed:\n"
        "efa-config_1.17_all libfabric-aws-bin_1.22.0amzn4.0_amd64 libnccl-ofi_1.13.2_amd64",
    )
    t.write("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf")
    t.write("/etc/ld.so.conf.d/efa.conf", "/opt/amazon/efa/lib")
    t.write("/opt/amazon/efa/lib/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.22.0amzn4.0")
    t.write("/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so", "ELF")
    t.nccl("2.27.5")


def cxi(t: Tree) -> None:
    """Four GH200 with a Slingshot adapter of 200 Gbit/s each."""
    t.machine("HPE", "HPE Cray EX254n", driver="550.54.15")
    for index in range(4):
        domain = f"{index:04x}"
        above = [f"pci{domain}:00", f"{domain}:00:00.0", f"{domain}:01:00.0"]
        pci = t.device(above, vendor=CRAY, device="0x0501", kind="0x020000", node=index, driver="cxi_ss1")
        t.link(f"/sys/class/cxi/cxi{index}", f"{pci}/cxi/cxi{index}")
        t.link(f"{pci}/cxi/cxi{index}/device", pci)
        for name, text in {"speed": "200000", "link": "1", "cassini_version": "1.1"}.items():
            t.write(f"{pci}/properties/{name}", text)
        t.write(f"{pci}/fru/part_number", "P43012-002")
        t.interface(f"hsn{index}", pci, speed=200_000, mtu=9000)
        bus = f"{index + 8:04x}"
        t.gpu([f"pci{bus}:00", f"{bus}:00:00.0", f"{bus}:01:00.0"], GH200, node=index)
    t.write_nvml([f"{index + 8:04x}:01:00.0" for index in range(4)], "NV6", NAMES[GH200])
    t.interface("nmn0", None, speed=1000)
    t.default_route("nmn0")
    for index in range(4):
        t.connected(f"hsn{index}", "00001CAC", "0000FFFF")
    t.write("/opt/cray/libfabric/1.15.2.0/lib64/libfabric.so.1", "ELF")
    t.write("/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1", "ELF")
    t.nccl("2.21.5")


def ethernet_25g(t: Tree) -> None:
    """Two L40S and one interface of 25 GbE without RDMA."""
    t.machine("Dell Inc.", "PowerEdge R760xa", lock="8388608", driver="550.54.15")
    t.gpu(at_root(0x10), L40S)
    t.gpu(at_root(0xA0), L40S, node=1)
    t.write_nvml(["0000:11:00.0", "0000:a1:00.0"], "SYS", NAMES[L40S])
    t.ethernet("eth0", at_root(0x30), 25_000)
    pci = t.device(at_root(0x32), vendor=INTEL, device="0x1521", kind="0x020000", driver="igb", lanes=4)
    t.interface("eno1", pci, speed=None, state="down")
    t.interface("docker0", None, speed=10_000)
    t.nccl("2.27.5")


def ethernet_two(t: Tree) -> None:
    """One interface of 1 GbE with the default route, and one of 100 GbE in a network of its own."""
    t.machine("Dell Inc.", "PowerEdge R760xa", lock="8388608", driver="550.54.15")
    t.gpu(at_root(0x10), L40S)
    t.write_nvml(["0000:11:00.0"], "SYS", NAMES[L40S])
    t.ethernet("eth0", at_root(0x30), 1000)
    t.ethernet("eth1", at_root(0x34), 100_000, default=False)
    t.connected("eth1", "0000010A", "0000FFFF")
    t.nccl("2.27.5")


def nvlink(t: Tree) -> None:
    """A single node: eight H200 and one interface of 10 GbE."""
    t.machine("GIGABYTE", "G593-ZD1", driver="550.54.15")
    _eight_gpus(t, H200)
    t.ethernet("eth0", at_root(0x01), 10_000, driver="ixgbe")
    t.nccl("2.27.5")


def pcie(t: Tree) -> None:
    """A workstation: two L40S at root ports, without NVML's reading."""
    t.machine("ASUS", "Pro WS WRX90E-SAGE SE", lock="8388608", driver="550.54.15")
    t.gpu(at_root(0x10), L40S)
    t.gpu(at_root(0x20), L40S)
    t.ethernet("eth0", at_root(0x01), 10_000, driver="atlantic")


def cpu(t: Tree) -> None:
    """Processors and one interface of 1 GbE."""
    t.machine("QEMU", "Standard PC (Q35 + ICH9, 2009)", lock="8388608")
    t.ethernet("eth0", at_root(0x01), 1000, driver="e1000e")


KINDS: dict[str, Callable[[Tree], None]] = {
    "ndr": ndr,
    "dead_hca": dead_hca,
    "all_down": all_down,
    "hdr_mixed": hdr_mixed,
    "roce_bond": roce_bond,
    "efa_p5": efa_p5,
    "cxi": cxi,
    "ethernet_25g": ethernet_25g,
    "ethernet_two": ethernet_two,
    "nvlink": nvlink,
    "pcie": pcie,
    "cpu": cpu,
}


def tree(kind: str, folder: Path) -> Path:
    """The root of a tree of `KINDS`, built in the empty or missing `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    KINDS[kind](Tree(folder))
    return folder
