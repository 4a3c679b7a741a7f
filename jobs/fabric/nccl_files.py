"""Files of variables that NCCL reads by itself, besides the environment.

Source: `src/misc/param.cc` of NCCL (`initEnv`). NCCL reads `$NCCL_CONF_FILE` (from 2.23), or else
`.nccl.conf` in the home folder, and then `/etc/nccl.conf`. A variable that is already set keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobs.fabric.description import ConfigurationFile
from jobs.fabric.kernel_files import FileTree

_MACHINE_FILE = "/etc/nccl.conf"


def read_nccl_files(tree: FileTree, environ: Mapping[str, str], home: str) -> tuple[ConfigurationFile, ...]:
    """The files that exist, the user's first; empty files are included."""
    own = environ.get("NCCL_CONF_FILE") or f"{home.rstrip('/')}/.nccl.conf"
    return tuple(
        ConfigurationFile(path, parse_variables(tree.unstripped_text(path) or ""))
        for path in (own, _MACHINE_FILE)
        if path.startswith("/") and tree.exists(path)
    )


def parse_variables(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of name and value. Of a name given twice the first value counts, as NCCL never overwrites one."""
    found: dict[str, str] = {}
    for _, name, value in variable_lines(text):
        found.setdefault(name, value)
    return tuple(found.items())


def variable_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, name and value of each line with a variable.

    As for NCCL, blanks and quotes around the equals sign belong to the name or the value, and only a line
    that begins with # is a comment.
    """
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if equals and name and not line.startswith("#"):
            yield number, name, value
