"""Environment variables of NCCL, torch, gloo and libfabric: versions, class, allowed values, former defaults.

The data is `variables.json` beside this module; `docs/fabric.md` describes its format and how to update it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jobs.fabric.integers import integer_prefix

_DATA = Path(__file__).with_name("variables.json")
_OPEN_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "FI_CXI_", "FI_EFA_", "OFI_NCCL_")
"""Prefixes under which a name that the registry lacks is worth a finding."""
SHARP_PLUGIN = "nccl-rdma-sharp-plugins"
"""NVIDIA's network plugin of NCCL with SHARP (HPC-X), as a library of variables."""
READ_BY_OTHERS = ("NCCL_SHARP_", "NCCL_UCX_", "RCCL_", "HCCL_", "CCL_")
"""Prefixes of that plugin and of its UCX, and of the libraries of AMD, Huawei and Intel."""
_CLOSE = 0.88
"""Similarity (`difflib`) from which another name is taken for a misspelling."""
_AUTOMATIC = ("auto", "built-in", "unlimited")
"""Defaults of the data that are no value to set."""

_ON = {"torch": ("1", "true", "t", "yes", "y"), "libfabric": ("1", "true", "yes", "on")}
_OFF = {"torch": ("0", "false", "f", "no", "n"), "libfabric": ("0", "false", "no", "off")}
"""Words of boolean variables by library, in any case: `getCvarBool` of torch, `fi_param_get` of libfabric."""

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """`2.27.5` or `2.27.5+cuda12` as numbers. Raises `ValueError`."""
    return tuple(int(part) for part in text.split("+")[0].split("-")[0].split("."))


def is_off(value: str) -> bool:
    """Whether a value switches a boolean variable off, in the words of torch or libfabric."""
    return any(value.casefold() in words for words in _OFF.values())


@dataclass(frozen=True)
class Variable:
    """One environment variable; a line of `variables.json`."""

    name: str
    library: str
    """Library that reads it: `nccl`, `torch`, `gloo`, `libfabric`, or `SHARP_PLUGIN`. Versions are those of
    this library."""
    kind: str
    """`system` may stay in scripts and site files, `debug` must not (NVIDIA's user guide). `internal` is not
    documented. `alias` is a former name. `dead` is read by no version."""
    since: str | None = None
    """First version that reads it."""
    until: str | None = None
    """Last version that reads it; None: it is still read."""
    replaced_by: str | None = None
    type: str | None = None
    """`integer`, `choice`, `list` (of choices), `names` (of devices), `algorithms`, `protocols`, `text`."""
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()
    """Version from which each default holds, oldest first."""
    fabrics: tuple[str, ...] = ()
    """Kinds of network (`FabricKind`) on which it has an effect; empty: all."""
    network: bool = False
    """Whether it affects only traffic between nodes."""
    note: str | None = None

    def default_at(self, version: str | None) -> str | None:
        """The default at a version of the library, or of the newest one; None if it is no value to set."""
        known = [
            value
            for first, value in self.defaults
            if version is None or parse_version(first) <= parse_version(version)
        ]
        return known[-1] if known and known[-1] not in _AUTOMATIC else None

    def former_default(self, value: str, version: str | None) -> str | None:
        """The last version whose default was `value`, if the default at `version` is another."""
        if value == self.default_at(version):
            return None
        for (_, old), (changed, _) in zip(self.defaults, self.defaults[1:], strict=False):
            if old == value and (version is None or parse_version(changed) <= parse_version(version)):
                return changed
        return None

    def is_read_by(self, version: str) -> bool:
        """Whether a version of the library reads it."""
        at = parse_version(version)
        too_old = self.since is not None and at < parse_version(self.since)
        return self.kind != "dead" and not too_old and not self._removed_before(at)

    def _removed_before(self, at: Version) -> bool:
        return self.until is not None and at > parse_version(self.until)

    def allowed(self) -> str | None:
        """The allowed values, in words; None without a rule."""
        if self.type == "integer":
            if self.maximum is None:
                return f"an integer from {self.minimum}" if self.minimum is not None else "an integer"
            return f"an integer from {self.minimum} to {self.maximum}"
        if self.type == "boolean":
            return ", ".join(self._booleans())
        return ", ".join(self.choices) or None

    def accepts(self, value: str) -> bool:
        """Whether a value is of the allowed ones. True without a rule."""
        if self.type == "integer":
            return self._accepts_integer(value)
        if self.type == "boolean":
            return value.casefold() in self._booleans()
        if self.type in ("choice", "list", "algorithms", "protocols"):
            known = {choice.casefold() for choice in self.choices}
            words = [value] if self.type == "choice" else _words(value)
            return bool(words) and all(word.casefold() in known for word in words)
        return True

    def is_number_of_level(self, value: str) -> bool:
        """Whether a value is a number in place of a name such as PHB, which NCCL still reads."""
        is_level = self.library == "nccl" and self.type == "choice" and self.name.endswith("_LEVEL")
        return is_level and value.strip().isdecimal()

    def _booleans(self) -> tuple[str, ...]:
        return _ON[self.library] + _OFF[self.library]

    def read_integer(self, value: str) -> tuple[int, str] | None:
        """The allowed integer at the start of a value, and the rest, which the library ignores; None without
        one."""
        found = integer_prefix(value) if self.type == "integer" else None
        if found is None or (self.minimum is not None and found[0] < self.minimum):
            return None
        return found if self.maximum is None or found[0] <= self.maximum else None

    def _accepts_integer(self, value: str) -> bool:
        """Whether a value is an allowed integer, alone or before a blank."""
        found = self.read_integer(value)
        return found is not None and (not found[1] or found[1][0].isspace())


def _words(value: str) -> list[str]:
    """Names in a list such as `^LL128` or, by function since NCCL 2.24, `Ring;allreduce:Tree,Ring`."""
    lists = [part.rpartition(":")[2] for part in value.split(";") if part]
    return [word.strip().lstrip("^") for part in lists for word in part.split(",") if word.strip()]


@dataclass(frozen=True)
class Registry:
    """All variables by name, and the newest versions that the data was read from."""

    variables: Mapping[str, Variable]
    read_from: Mapping[str, str]

    def get(self, name: str) -> Variable | None:
        return self.variables.get(name)

    def is_of_interest(self, name: str) -> bool:
        """Whether a name, or a word of a name with blanks, is in the registry or has a prefix of its
        libraries. An indented comment, which NCCL takes for a name, is of none."""
        if name.lstrip().startswith("#"):
            return False
        return any(word in self.variables or word.startswith(_OPEN_PREFIXES) for word in name.split())

    def is_judged(self, name: str) -> bool:
        """Whether the lint has a rule for a name: also where its prefix is misspelt."""
        return self.is_of_interest(name) or self.misspelt(name) is not None

    def misspelt(self, name: str) -> str | None:
        """The known name that an unknown one most likely stands for; None for known ones, names of other
        libraries, without a close one, and where neither name has a prefix of the libraries."""
        if name in self.variables or name.startswith(READ_BY_OTHERS) or name.lstrip().startswith("#"):
            return None
        live = [each.name for each in self.variables.values() if each.kind != "dead"]
        close = next(iter(difflib.get_close_matches(name, live, n=1, cutoff=_CLOSE)), None)
        is_open = close is not None and (name.startswith(_OPEN_PREFIXES) or close.startswith(_OPEN_PREFIXES))
        return close if is_open else None


@cache
def registry() -> Registry:
    """The registry of the shipped data."""
    data = json.loads(_DATA.read_text())
    variables = {name: _variable(name, entry) for name, entry in data["variables"].items()}
    return Registry(variables, data["read_from"])


def _variable(name: str, entry: Mapping[str, Any]) -> Variable:
    renamed = {"class": "kind", "min": "minimum", "max": "maximum"}
    fields = {renamed.get(key, key): value for key, value in entry.items()}
    fields["choices"] = tuple(fields.get("choices", ()))
    fields["fabrics"] = tuple(fields.get("fabrics", ()))
    fields["defaults"] = tuple((version, value) for version, value in fields.get("defaults", ()))
    return Variable(name, **fields)
