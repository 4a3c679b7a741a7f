"""Reading of the kernel's files below a root, and places of devices on the PCI bus; nothing raises.

The root is `/` on a node. A copy of its `/sys`, `/proc` and `/etc` in another folder reads the same.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from itertools import islice, takewhile
from pathlib import Path
from typing import TypeVar

from jobs.fabric.description import PciDevice

T = TypeVar("T")
_MB, _MOST_MB = 1 << 20, 16
"""Size and number of reads of a file at most: plugins of NCCL have some MB; /proc refuses larger reads."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.IGNORECASE)
_MOST_CORES = 1 << 14

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Paths over PCI, nearest first, in the words of `nvidia-smi topo -m`."""
NEAR = ("PIX", "PXB")
"""Paths that stay below one root port: the processor takes no part in a transfer."""


class FileTree:
    """The files below `root`. Paths are given and returned as on the node, for example `/sys/class/net`.

    A symbolic link that leads out of the root counts as missing.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))

    def text(self, path: str) -> str | None:
        """The content without surrounding white space; None if the file is missing, unreadable or empty.

        Some files exist and cannot be read, for example `speed` of an interface that is down (EINVAL).
        """
        return (self.unstripped_text(path) or "").strip("\0 \n\t\r") or None

    def unstripped_text(self, path: str) -> str | None:
        """The content as it is; None if the file is missing or unreadable."""
        content = self._of(path, _regular_content)
        return content.decode(errors="replace") if content is not None else None

    def match(self, pattern: str, *paths: str) -> tuple[str, str] | tuple[None, None]:
        """The first group of a pattern in the first of these files that has it, and the path of the file."""
        for path in paths:
            if found := re.search(pattern, self.text(path) or "", re.MULTILINE):
                return found[1], path
        return None, None

    def integer(self, path: str) -> int | None:
        """The number in a file, decimal or hexadecimal with `0x`."""
        return parse_integer(self.text(path))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, with numbers in numeric order: `mlx5_2` before `mlx5_10`."""
        return sorted(self._of(folder, os.listdir) or [], key=natural_order)

    def exists(self, path: str) -> bool:
        return bool(self._of(path, Path.exists))

    def exists_in(self, folder: str, *names: str) -> bool | None:
        """Whether one of these is in a folder; None if the folder is missing."""
        return any(self.exists(f"{folder}/{name}") for name in names) if self.exists(folder) else None

    def link_name(self, path: str) -> str | None:
        """Last part of the target of a symbolic link: the name of a driver, or of a bond."""
        folder, _, name = path.rpartition("/")
        target = self._of(folder, lambda real: os.readlink(real / name))
        return (target or "").rstrip("/").rpartition("/")[2] or None

    def real_path(self, path: str) -> str | None:
        """The path without symbolic links; None if it is missing."""
        return self._of(path, lambda real: f"/{real.resolve(strict=True).relative_to(self._root)}")

    def _of(self, path: str, read: Callable[[Path], T]) -> T | None:
        """What `read` returns of a path; None if it raises, or if the path leads out of the root."""
        try:
            real = Path(os.path.realpath(self._root / path.lstrip("/")))
            return read(real) if real.is_relative_to(self._root) else None
        except (OSError, ValueError):
            return None


def _regular_content(real: Path) -> bytes | None:
    if not stat.S_ISREG(real.stat().st_mode):  # a pipe would block
        return None
    with real.open("rb") as file:
        return b"".join(islice(iter(lambda: file.read(_MB), b""), _MOST_MB))


def parse_integer(text: str | None) -> int | None:
    """The number at the start of a text, for example of `0x15b3` or `-1`; None without one."""
    found = re.match(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+))\b", text or "", re.ASCII)
    return int(found[1], 16 if "x" in found[1].lower() else 10) if found else None


def parse_float(text: str | None) -> float | None:
    """The number at the start of a text, for example of `32.0 GT/s PCIe`; None without one."""
    found = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)", text or "", re.ASCII)
    return float(found[1]) if found else None


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sort key in which numbers within names count as numbers."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isascii() and part.isdecimal() else (-1, part) for part in parts]


def read_pci_device(tree: FileTree, path: str) -> PciDevice | None:
    """The PCI device that `path` leads to, for example `/sys/class/net/eth0/device`; None without one.

    A device on another bus, such as virtio, counts as the PCI device above it.
    """
    parts = (tree.real_path(path) or "").split("/")
    while parts and not _ADDRESS.fullmatch(parts[-1]):
        parts.pop()
    if not parts:
        return None
    folder = "/".join(parts)
    numa_node = tree.integer(f"{folder}/numa_node")
    speeds = [parse_float(tree.text(f"{end}/max_link_speed")) for end in (folder, folder.rpartition("/")[0])]
    on_bus = (part for part in parts if _ADDRESS.fullmatch(part) or _HOST_BRIDGE.fullmatch(part))
    # virtual machines report 0 or 255 for an unknown width
    widths = [tree.integer(f"{folder}/{end}_link_width") for end in ("current", "max")]
    lanes, lanes_max = (width if width is not None and 0 < width <= 32 else None for width in widths)
    return PciDevice(
        address=parts[-1].lower(),
        path=tuple(part.lower() for part in on_bus),
        vendor=tree.text(f"{folder}/vendor"),
        device=tree.text(f"{folder}/device"),
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        cores=parse_cores(tree.text(f"{folder}/local_cpulist")),
        link_gt_per_s=parse_float(tree.text(f"{folder}/current_link_speed")),
        link_max_gt_per_s=min((speed for speed in speeds if speed is not None), default=None),
        lanes=lanes,
        lanes_max=lanes_max,
    )


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Processors of a list such as `0-3,8`, in ascending order; empty if the text is not such a list."""
    cores: set[int] = set()
    for part in (text or "").split(","):
        ends = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part, re.ASCII)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, -1)
        if not first <= last < _MOST_CORES:
            return ()
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def pci_path(first: PciDevice, second: PciDevice) -> str:
    """Path between two devices, one of `PATHS`.

    `PIX`: one PCIe switch. `PXB`: several switches below one root port. `PHB`: one host bridge. `NODE`: two
    host bridges of a NUMA node. `SYS`: two NUMA nodes. Devices of unknown NUMA nodes count as of one node.
    """
    above = zip(first.path[:-1], second.path[:-1], strict=False)
    common = len([*takewhile(lambda pair: pair[0] == pair[1], above)])
    if common >= 2:  # the host bridge and a root port
        bridges = max(len(first.path), len(second.path)) - 1 - common
        return "PIX" if bridges <= 1 else "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if first.numa_node == second.numa_node else "SYS"
