"""Masking of secrets in recorded text: values whose names look like secrets, or that `job.secrets` lists.

Standard library only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

MASK = "***"

_SECRET = re.compile(
    r"TOKEN(_|$)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|AUTH|PWD|PSK|JWT)(_|$)|(^|_)PAT$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"""\b([A-Za-z_]\w*)["']?[ \t]*[:=][ \t]*(?=\S)""")


def is_secret(name: str) -> bool:
    """Whether the name of a variable looks like that of a secret."""
    return _SECRET.search(name) is not None


def mask_argv(argv: Sequence[str], names: Sequence[str] = ()) -> list[str]:
    """A command line with its secrets masked: `--api-token x`, `job.env.HF_TOKEN=x`, `job.env={HF_TOKEN: x}`.

    `names` are secrets that do not look like one.
    """

    def is_named(option: str) -> bool:
        name = option.rsplit(".", 1)[-1].lstrip("-").replace("-", "_")
        return is_secret(name) or name in names

    masked: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        flag = masked[-1] if masked else ""
        if equals and is_named(name):
            masked.append(f"{name}={MASK}")
        elif flag.startswith("-") and "=" not in flag and is_named(flag):
            masked.append(MASK)
        else:
            masked.append(mask_lines(word, tuple(names)))
    return masked


@functools.lru_cache(maxsize=8)  # the runs of a sweep share a long diff
def mask_lines(text: str, names: Sequence[str] = ()) -> str:
    """Text (a diff, say) with each line masked after `NAME: ` or `NAME=`, where NAME is in capitals and looks
    like a secret, or is in the tuple `names`."""
    return "\n".join(_mask_line(line, names) for line in text.split("\n"))


def _mask_line(line: str, names: Sequence[str]) -> str:
    for found in _VARIABLE.finditer(line):
        name = found[1]
        if name in names or (name.isupper() and is_secret(name)):
            return line[: found.end()] + MASK
    return line
