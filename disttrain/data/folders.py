"""Files of a folder. Imports without torch."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection
from pathlib import Path


def files_below(root: Path, pattern: str = "*", left_out: Collection[str] = ("__pycache__",)) -> list[str]:
    """Sorted relative paths of the files in a folder, without hidden files and folders and those of the names
    `left_out`. A file has the relative path `""`."""
    if root.is_file():
        return [""]
    start, names = len(os.path.join(root, "")), []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        names += [
            os.path.join(folder, name)[start:]
            for name in fnmatch.filter(files, pattern)
            if not name.startswith(".")
        ]
    return sorted(names)
