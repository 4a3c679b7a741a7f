"""Snapshots of the code as hard links to one copy: a snapshot has hundreds of files, and most tests submit
runs to a runs folder of their own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from jobs.core.code_copy import CodeContent, Progress, _write, without_progress
from jobs.core.run_code import archive_of


class LinkedCode:
    """A replacement for `jobs.core.code_copy._write`; `folder` is for the copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, content: CodeContent, path: Path, progress: Progress) -> None:
        copy = self._folder / content.name
        if not copy.exists():
            _write(content, copy, without_progress)
        linked = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            shutil.copytree(copy, linked, copy_function=os.link)
            archive_of(path).unlink(missing_ok=True)
            os.link(archive_of(copy), archive_of(path))
            os.rename(linked, path)
        except OSError:  # another file system, one without links, or another process has written the snapshot
            shutil.rmtree(linked, ignore_errors=True)
            if not path.exists():
                _write(content, path, progress)
