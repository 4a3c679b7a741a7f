"""Reading of the kernel's files below a root; no method raises.

The root is `/` on a node. A copy of its `/sys`, `/proc` and `/etc` in another folder reads the same.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePosixPath

_LARGEST_TEXT = 1 << 20
"""Bytes read of a file at most."""


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
        content = self.content(path, _LARGEST_TEXT)
        return content.decode(errors="replace") if content is not None else None

    def content(self, path: str, at_most: int) -> bytes | None:
        """The first `at_most` bytes of a regular file."""
        real = self._real(path)
        try:
            if real is None or not stat.S_ISREG(real.stat().st_mode):  # a pipe would block
                return None
            with real.open("rb") as file:
                return file.read(at_most)
        except (OSError, ValueError):
            return None

    def integer(self, path: str) -> int | None:
        """The number in a file, decimal or hexadecimal with `0x`."""
        return parse_integer(self.text(path))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, with numbers in numeric order: `mlx5_2` before `mlx5_10`."""
        real = self._real(folder)
        try:
            return sorted(os.listdir(real), key=natural_order) if real is not None else []
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        real = self._real(path)
        try:
            return real is not None and real.exists()
        except (OSError, ValueError):
            return False

    def link_name(self, path: str) -> str | None:
        """Last part of the target of a symbolic link: the name of a driver, or of a bond."""
        try:
            return os.readlink(self._below(path)).rstrip("/").rpartition("/")[2] or None
        except (OSError, ValueError):
            return None

    def real_path(self, path: str) -> str | None:
        """The path without symbolic links; None if it is missing."""
        real = self._real(path)
        if real is None or not self.exists(path):
            return None
        return "/" + str(real.relative_to(self._root)) if real != self._root else "/"

    def _below(self, path: str) -> Path:
        return self._root / str(PurePosixPath(path)).lstrip("/")

    def _real(self, path: str) -> Path | None:
        try:
            real = Path(os.path.realpath(self._below(path)))
        except (OSError, ValueError):
            return None
        return real if real.is_relative_to(self._root) else None


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
