"""Masking of secrets: values whose names look like secrets are not recorded. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"

_SECRET = re.compile(
    r"TOKEN(_|$)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(^|_)(KEY|AUTH|PAT|PWD|PSK)(_|$)", re.IGNORECASE
)
_VARIABLE = re.compile(r"""\b([A-Z][A-Z0-9_]+)["']?[ \t]*[:=][ \t]*(?=\S)""")


def is_secret(name: str) -> bool:
    """Whether the name of a variable looks like that of a secret."""
    return _SECRET.search(name) is not None


def mask_argv(argv: Sequence[str]) -> list[str]:
    """A command line with its secrets masked: `--api-token x`, `job.env.HF_TOKEN=x`."""
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


def mask_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The config with the secrets of `job.env` masked, and these secrets by name."""
    env = config["job"]["env"]
    secrets = {name: value for name, value in env.items() if is_secret(name) and value != MASK}
    job = {**config["job"], "env": {name: MASK if name in secrets else value for name, value in env.items()}}
    return {**config, "job": job}, secrets


def mask_lines(text: str) -> str:
    """Text (a diff, say) with each line masked after `NAME: ` or `NAME=`, where NAME is in capitals and looks
    like a secret."""
    return "\n".join(_mask_line(line) for line in text.split("\n"))


def _mask_line(line: str) -> str:
    for found in _VARIABLE.finditer(line):
        if is_secret(found[1]):
            return line[: found.end()] + MASK
    return line
