"""What must not be written down: values whose names look like secrets. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"

_SECRET = re.compile(
    r"TOKEN(_|$)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|AUTH|PAT|PWD)(_|$)", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether the value of a variable of this name must not be written down."""
    return _SECRET.search(name) is not None


def mask_argv(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: `--api-token x`, `job.env.HF_TOKEN=x`."""
    masked: list[str] = []
    for word in argv:
        name, equals, _ = word.partition("=")
        after_secret_flag = bool(masked) and masked[-1].startswith("-") and _names_secret(masked[-1])
        if equals and _names_secret(name):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(MASK if after_secret_flag and "=" not in masked[-1] else word)
    return masked


def _names_secret(option: str) -> bool:
    return is_secret(option.rsplit(".", 1)[-1].lstrip("-").replace("-", "_"))
