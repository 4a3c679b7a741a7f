"""Modes of new files. Standard library only."""

from __future__ import annotations

import os


def forbid_world_writes() -> None:
    """Take from all users write access to the files that this process and its children create.

    Records, scripts and code copies decide what the jobs of their owner do. Access of a group, as in a shared
    runs folder, stays as the umask has it.
    """
    os.umask(os.umask(0o077) | 0o002)
