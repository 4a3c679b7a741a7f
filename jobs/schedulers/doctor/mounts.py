"""The file system of a path, from `/proc/self/mountinfo`. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

Reach = Literal["network", "memory", "disk", "unknown"]
"""`network`: several hosts can mount the file system. `disk`: a disk of this host, which it may export."""

_NETWORK = re.compile(
    r"nfs\d?|lustre|gpfs|beegfs|ceph|cifs|smb3?|9p|wekafs|panfs|orangefs|pvfs2|glusterfs|afs|virtiofs|cvmfs"
    r"|fuse\.(ceph|ceph-fuse|glusterfs|juicefs|JuiceFS|sshfs|weka|quobyte|lizardfs|moosefs|mfs|gcsfuse|s3fs)"
)
_MEMORY = {"tmpfs", "ramfs"}
_DISK = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "reiserfs"}


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    point: str
    type: str
    source: str
    options: str
    """Options of the mount and of the file system, with commas."""

    @property
    def reach(self) -> Reach:
        if _NETWORK.fullmatch(self.type):
            return "network"
        if self.type in _MEMORY:
            return "memory"
        return "disk" if self.type in _DISK else "unknown"

    def __str__(self) -> str:
        return f"{self.type} on {self.point}"


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """The mount that holds an absolute path; of several at one mount point, the last, which hides the others.

    `mountinfo` is the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
    """
    found: Mount | None = None
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, rest = head.split(), tail.split()
        if not dash or len(fields) < 6 or len(rest) < 2:
            continue
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4])
        holds = PurePosixPath(path).is_relative_to(point)
        if holds and (found is None or len(point) >= len(found.point)):
            options = ",".join([fields[5], *rest[2:3]])
            found = Mount(point, rest[0], rest[1], options)
    return found
