"""Virtual environments with some of the packages of this one, by links, so that they are made at once."""

from __future__ import annotations

import re
import sys
import sysconfig
import venv
from pathlib import Path

TORCH = re.compile(r"(lib)?torch|functorch|triton|nvidia")
"""Names of what `pip install torch` brings that nothing else needs."""
_NEEDED_BY_TORCH = re.compile(
    r"typing_extensions|sympy|mpmath|networkx|jinja2|markupsafe|fsspec|filelock|setuptools"
)


def environment(folder: Path, *, only_torch: bool) -> Path:
    """An environment with torch and what torch needs alone, or with all packages but torch; its folder."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        has_torch = TORCH.match(entry.name) is not None
        needed = has_torch or _NEEDED_BY_TORCH.match(entry.name.lower()) is not None
        if (needed if only_torch else not has_torch) and entry.suffix != ".pth":
            (folder / "lib" / version / "site-packages" / entry.name).symlink_to(entry)
    return folder
