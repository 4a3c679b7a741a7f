"""A builder of file trees as the kernel shows them, for `tests.support.fabric_trees`.

Names and contents follow the kernel: folders of devices below `/sys/devices/pci*`, class folders of relative
symbolic links, `4: ACTIVE`, `400 Gb/sec (4X NDR)`, speeds of interfaces in Mbit/s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MELLANOX, INTEL, AMAZON, CRAY, NVIDIA = "0x15b3", "0x8086", "0x1d0f", "0x17db", "0x10de"
CONNECTX7, CONNECTX6, CONNECTX6_DX, CONNECTX5 = "0x1021", "0x101b", "0x101d", "0x1017"
H100, A100, H200, L40S, GH200 = "0x2330", "0x20b2", "0x2335", "0x26b9", "0x2342"
NAMES = {
    H100: "NVIDIA H100 80GB HBM3",
    A100: "NVIDIA A100-SXM4-40GB",
    H200: "NVIDIA H200",
    L40S: "NVIDIA L40S",
    GH200: "NVIDIA GH200 120GB",
}
_CORES = {0: "0-47", 1: "48-95"}


class Tree:
    """A builder of one file tree."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        """A file with a line feed at its end, as the kernel prints it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        """A relative symbolic link, as in `/sys/class`."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(os.path.relpath(self.root / target.lstrip("/"), file.parent))

    def device(
        self,
        above: Sequence[str],
        *,
        vendor: str,
        device: str,
        kind: str,
        node: int = 0,
        driver: str | None = None,
        lanes: int = 16,
        speed: str = "32.0 GT/s PCIe",
    ) -> str:
        """A PCI device; `above` is its host bridge and PCI addresses down to its own. Returns its folder."""
        folder = "/sys/devices/" + "/".join(above)
        files = {
            "vendor": vendor,
            "device": device,
            "class": kind,
            "numa_node": str(node),
            "local_cpulist": _CORES.get(node, "0-95"),
            "current_link_speed": speed,
            "max_link_speed": "32.0 GT/s PCIe",
            "current_link_width": str(lanes),
            "max_link_width": "16",
        }
        for name, text in files.items():
            self.write(f"{folder}/{name}", text)
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
        self.link(f"/sys/bus/pci/devices/{above[-1]}", folder)
        return folder

    def gpu(self, above: Sequence[str], device: str = H100, node: int = 0) -> None:
        self.device(above, vendor=NVIDIA, device=device, kind="0x030200", node=node, driver="nvidia")
        uuid = f"GPU-{above[-1].replace(':', '').replace('.', ''):0>8}-0000-0000-0000-000000000000"
        self.write(
            f"/proc/driver/nvidia/gpus/{above[-1]}/information",
            f"Model: \t\t {NAMES[device]}\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nBus Type: \t PCIe",
        )

    def port(
        self,
        adapter: str,
        rate: str,
        *,
        layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        physical: str = "5: LinkUp",
        gids: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        """Port 1 of an adapter. `gids`: address, type and interface of each."""
        folder = f"{adapter}/ports/1"
        self.write("/dev/infiniband/uverbs0", "")
        files = {"link_layer": layer, "state": state, "phys_state": physical, "rate": rate, "lid": "0x1a"}
        files |= {"counters/link_downed": "0", "counters/port_xmit_data": "0"}
        for name, text in files.items():
            self.write(f"{folder}/{name}", text)
        for index, (address, kind, interface) in enumerate(gids):
            self.write(f"{folder}/gids/{index}", address)
            self.write(f"{folder}/gid_attrs/types/{index}", kind)
            self.write(f"{folder}/gid_attrs/ndevs/{index}", interface)

    def rdma(self, name: str, pci: str, rate: str, board: str | None = None, **port: Any) -> None:
        """The adapter on the PCI device of folder `pci`, with one port."""
        folder = f"{pci}/infiniband/{name}"
        self.link(f"/sys/class/infiniband/{name}", folder)
        self.link(f"{folder}/device", pci)
        if board:
            self.write(f"{folder}/board_id", board)
        self.port(folder, rate, **port)

    def hca(
        self,
        name: str,
        above: Sequence[str],
        rate: str,
        *,
        device: str = CONNECTX7,
        node: int = 0,
        board: str = "MT_0000000838",
        interface: str | None = None,
        **port: str,
    ) -> None:
        """An InfiniBand adapter, with an IPoIB interface if one is named."""
        pci = self.device(
            above, vendor=MELLANOX, device=device, kind="0x020700", node=node, driver="mlx5_core"
        )
        self.write(f"{pci}/infiniband/{name}/fw_ver", "28.39.1002")
        self.rdma(name, pci, rate, board, **port)
        if interface:
            self.interface(interface, pci, kind=32, speed=None, mtu=2044)

    def interface(
        self,
        name: str,
        pci: str | None,
        *,
        speed: int | None,
        state: str = "up",
        kind: int = 1,
        mtu: int = 1500,
        master: str | None = None,
    ) -> None:
        """A network interface on the PCI device of folder `pci`; None for a virtual one."""
        folder = f"{pci or '/sys/devices/virtual'}/net/{name}"
        self.link(f"/sys/class/net/{name}", folder)
        self.write(f"{folder}/operstate", state)
        self.write(f"{folder}/type", str(kind))
        self.write(f"{folder}/mtu", str(mtu))
        if speed is not None:
            self.write(f"{folder}/speed", str(speed))
        if pci:
            self.link(f"{folder}/device", pci)
        if master:
            self.link(f"{folder}/master", f"/sys/devices/virtual/net/{master}")

    def ethernet(
        self, name: str, above: Sequence[str], speed: int, *, driver: str = "ice", default: bool = True
    ) -> str:
        """A network card with one interface, by default with the default route. Returns the card's folder."""
        pci = self.device(above, vendor=INTEL, device="0x1593", kind="0x020000", driver=driver, lanes=8)
        self.interface(name, pci, speed=speed)
        if default:
            self.default_route(name)
        return pci

    def default_route(self, interface: str) -> None:
        head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
        lines = [
            f"{interface}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0",
            f"{interface}\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0",
        ]
        self.write("/proc/net/route", "\n".join([head, *lines]))

    def connected(self, interface: str, network: str, mask: str) -> None:
        """A further route without a gateway; `network` and `mask` in hexadecimal, last byte first."""
        with (self.root / "proc/net/route").open("a") as routes:
            routes.write(f"{interface}\t{network}\t00000000\t0001\t0\t0\t100\t{mask}\t0\t0\t0\n")

    def machine(
        self, vendor: str, product: str, *, lock: str = "unlimited", driver: str | None = None
    ) -> None:
        """DMI, host name, kernel, limit of locked memory, loopback; with a version, NVIDIA's driver."""
        self.write("/sys/class/dmi/id/sys_vendor", vendor)
        self.write("/sys/class/dmi/id/product_name", product)
        self.write("/proc/sys/kernel/hostname", "node7")
        self.write("/proc/sys/kernel/osrelease", "5.15.0-1053")
        self.write("/proc/self/limits", f"Max locked memory         {lock:<20} {lock:<20} bytes     ")
        self.interface("lo", None, speed=None, state="unknown", kind=772, mtu=65536)
        self.write("/sys/module/ib_core/refcnt", "9")
        (self.root / "dev").mkdir()
        if driver:
            text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (root)"
            self.write("/proc/driver/nvidia/version", text)
            self.write("/sys/module/nvidia_peermem/refcnt", "0")

    def nccl(self, version: str) -> None:
        """The package beside PyTorch."""
        folder = f"/usr/local/lib/python3.11/site-packages/nvidia_nccl_cu12-{version}.dist-info"
        self.write(f"{folder}/METADATA", f"Name: nvidia-nccl-cu12\nVersion: {version}")

    def write_nvml(self, addresses: Sequence[str], path: str, name: str = NAMES[H100]) -> None:
        """`nvml.json` of GPUs that are linked alike: `NV18`, or a path over PCI."""
        links = int(path[2:]) if path.startswith("NV") else 0
        capability = (8, 0) if "A100" in name else (9, 0) if "H" in name.split()[1] else (8, 9)
        gpus = [
            {
                "pci_address": address,
                "name": name,
                "compute_capability": capability,
                "has_c2c": "GH200" in name,
                "nvlinks_active": links,
                "nvlinks": links or None,
            }
            for address in addresses
        ]
        pairs = [(a, b) for index, a in enumerate(addresses) for b in addresses[index + 1 :]]
        pairs_json = [{"first": a, "second": b, "path": path, "is_p2p": links > 0} for a, b in pairs]
        self.write("/nvml.json", json.dumps({"driver": "550.54.15", "gpus": gpus, "links": pairs_json}))


def below_switch(bus: int, device: int, slot: int) -> list[str]:
    """Path of a device below a PCIe switch: host bridge, root port, switch up and down, device."""
    return [
        f"pci0000:{bus:02x}",
        f"0000:{bus:02x}:01.0",
        f"0000:{bus + 1:02x}:00.0",
        f"0000:{bus + 2:02x}:{slot:02x}.0",
        f"0000:{device:02x}:00.0",
    ]


def at_root(bus: int, slot: int = 1) -> list[str]:
    """Path of a device at a root port of its own."""
    return [f"pci0000:{bus:02x}", f"0000:{bus:02x}:{slot:02x}.0", f"0000:{bus + 1:02x}:00.0"]
