"""Place of devices on the PCI bus, and the path between two of them."""

from __future__ import annotations

import re

from jobs.fabric.description import PciDevice
from jobs.fabric.kernel_files import FileTree, parse_float

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.IGNORECASE)
_MOST_CORES = 1 << 14

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCI, nearest first, in the words of `nvidia-smi topo -m`."""
NEAR = ("PIX", "PXB")
"""Paths that stay below one root port: the processor takes no part in a transfer."""


def read_pci_device(tree: FileTree, path: str) -> PciDevice | None:
    """The PCI device that `path` leads to, for example `/sys/class/net/eth0/device`; None without one.

    A device on another bus, such as virtio, counts as the PCI device above it.
    """
    parts = (tree.real_path(path) or "").split("/")
    last = max((index for index, part in enumerate(parts) if _ADDRESS.fullmatch(part)), default=None)
    if last is None:
        return None
    folder = "/".join(parts[: last + 1])
    node = tree.integer(f"{folder}/numa_node")
    speeds = [parse_float(tree.text(f"{end}/max_link_speed")) for end in (folder, folder.rpartition("/")[0])]
    return PciDevice(
        address=parts[last].lower(),
        path=tuple(
            part.lower()
            for part in parts[: last + 1]
            if _ADDRESS.fullmatch(part) or _HOST_BRIDGE.fullmatch(part)
        ),
        vendor=tree.text(f"{folder}/vendor"),
        device=tree.text(f"{folder}/device"),
        numa_node=node if node is not None and node >= 0 else None,
        cores=parse_cores(tree.text(f"{folder}/local_cpulist")),
        link_gt_per_s=parse_float(tree.text(f"{folder}/current_link_speed")),
        link_max_gt_per_s=min((speed for speed in speeds if speed is not None), default=None),
        lanes=_lanes(tree.integer(f"{folder}/current_link_width")),
        lanes_max=_lanes(tree.integer(f"{folder}/max_link_width")),
    )


def _lanes(width: int | None) -> int | None:
    """Number of lanes; virtual machines report 0 or 255 for an unknown width."""
    return width if width is not None and 0 < width <= 32 else None


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Processors of a list such as `0-3,8`, in ascending order; empty if the text is not such a list."""
    found: set[int] = set()
    for part in (text or "").split(","):
        ends = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part, re.ASCII)
        if ends is None:
            return ()
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or last >= _MOST_CORES:
            return ()
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def pci_path(first: PciDevice, second: PciDevice) -> str:
    """Path between two devices, one of `PATHS`.

    `PIX`: one PCIe switch. `PXB`: several switches below one root port. `PHB`: one host bridge. `NODE`: two
    host bridges of a NUMA node. `SYS`: two NUMA nodes. Devices of unknown NUMA nodes count as of one node.
    """
    common = 0
    for left, right in zip(first.path[:-1], second.path[:-1], strict=False):
        if left != right:
            break
        common += 1
    if common >= 2:  # the host bridge and a root port
        bridges = max(len(first.path), len(second.path)) - 1 - common
        return "PIX" if bridges <= 1 else "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if first.numa_node == second.numa_node else "SYS"
