"""Files of variables that NCCL reads by itself, besides the environment.

Source: `src/misc/param.cc` of NCCL (`initEnv`). NCCL reads `$NCCL_CONF_FILE` (from 2.23), or else
`.nccl.conf` in the home folder, and then `/etc/nccl.conf`. A variable that is already set keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobs.fabric.description import ConfigurationFile
from jobs.fabric.kernel_files import FileTree

_MACHINE_FILE = "/etc/nccl.conf"


def read_nccl_files(tree: FileTree, environ: Mapping[str, str], home: str) -> tuple[ConfigurationFile, ...]:
    """The files that exist, the user's first; empty files are included."""
    own = environ.get("NCCL_CONF_FILE") or f"{home.rstrip('/')}/.nccl.conf"
    return tuple(
        ConfigurationFile(path, parse_variables(tree.text(path) or ""))
        for path in (own, _MACHINE_FILE)
        if path.startswith("/") and tree.exists(path)
    )


def parse_variables(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of name and value. Of a name given twice the first value counts, as NCCL never overwrites one."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name.strip() and not name.startswith("#"):
            found.setdefault(name.strip(), value.strip())
    return tuple(found.items())
