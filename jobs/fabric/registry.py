"""Environment variables of NCCL, torch, gloo and libfabric: versions, class, allowed values, former defaults.

The data is `variables.json` beside this module; `docs/fabric.md` describes its format and how to update it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from jobs.fabric.integers import integer_prefix

_DATA = Path(__file__).with_name("variables.json")
_OPEN_PREFIXES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "FI_CXI_", "FI_EFA_", "OFI_NCCL_")
"""Prefixes under which a name that the registry lacks is worth a finding."""
READ_BY_OTHERS = ("NCCL_SHARP_", "NCCL_UCX_", "RCCL_", "HCCL_", "CCL_")
"""Prefixes of HPC-X's plugin with SHARP and its UCX, and of the libraries of AMD, Huawei and Intel."""
_CLOSE = 0.88
"""Similarity (`difflib`) from which another name is taken for a misspelling."""
AUTOMATIC = ("auto", "built-in", "unlimited")
"""Defaults of the data that are no value to set."""
_BOOLEANS = {
    "torch": ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"),
    "libfabric": ("1", "true", "yes", "on", "0", "false", "no", "off"),
}
"""Words of boolean variables by library, in any case: `getCvarBool` of torch, `fi_param_get` of libfabric."""

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """`2.27.5` or `2.27.5+cuda12` as numbers. Raises `ValueError`."""
    return tuple(int(part) for part in text.split("+")[0].split("-")[0].split("."))


@dataclass(frozen=True)
class Variable:
    """One environment variable; a line of `variables.json`."""

    name: str
    library: str
    """Library that reads it: `nccl`, `torch`, `gloo`, `libfabric`, or HPC-X's plugin
    `nccl-rdma-sharp-plugins`. Versions are those of this library."""
    kind: str
    """`system` may stay in scripts and site files, `debug` must not (NVIDIA's user guide). `internal` is not
    documented. `alias` is a former name. `dead` is read by no version."""
    since: str | None = None
    """First version that reads it."""
    until: str | None = None
    """Last version that reads it; None: it is still read."""
    replaced_by: str | None = None
    type: str | None = None
    """`integer`, `boolean`, `choice`, `list` (of choices)."""
    minimum: int | None = None
    maximum: int | None = None
    choices: Sequence[str] = ()
    defaults: Sequence[Sequence[str]] = ()
    """Pairs of a version and the default from it on, oldest first."""
    fabrics: Sequence[str] = ()
    """Kinds of network (`FabricKind`) on which it has an effect; empty: all."""
    network: bool = False
    """Whether it affects only traffic between nodes."""
    note: str | None = None

    def stale_default(self, value: str, version: str | None) -> tuple[str, str] | None:
        """The version that changed the default from `value`, and the default at `version` of the library, or
        at the newest one; None if `value` is no former default."""
        defaults = [
            (first, default)
            for first, default in self.defaults
            if version is None or parse_version(first) <= parse_version(version)
        ]
        changed = [later for (_, old), (later, _) in pairwise(defaults) if old == value]
        if not changed or defaults[-1][1] == value:
            return None
        now = defaults[-1][1]
        return changed[-1], "chosen automatically" if now in AUTOMATIC else now

    def is_read_by(self, version: str) -> bool:
        """Whether a version of the library reads it."""
        at = parse_version(version)
        too_old = self.since is not None and at < parse_version(self.since)
        return self.kind != "dead" and not too_old and (self.until is None or at <= parse_version(self.until))

    def allowed(self) -> str | None:
        """The allowed values, in words; None without a rule."""
        if self.type == "integer":
            return "an integer" + "".join(
                f" {word} {bound}"
                for word, bound in (("from", self.minimum), ("to", self.maximum))
                if bound is not None
            )
        return ", ".join(_BOOLEANS[self.library] if self.type == "boolean" else self.choices) or None

    def accepts(self, value: str) -> bool:
        """Whether a value, or the integer before a blank, is an allowed one. True without a rule."""
        if self.type == "integer":
            rest = self._rest_after_integer(value)
            return rest is not None and (not rest or rest[0].isspace())
        if self.type is None:
            return True
        words = _words(value) if self.type == "list" else [value]
        known = _BOOLEANS[self.library] if self.type == "boolean" else map(str.casefold, self.choices)
        return bool(words) and {word.casefold() for word in words} <= set(known)

    def reads_part(self, value: str) -> bool:
        """Whether the library reads a value that is not allowed: a number before letters, or that of a level,
        which changed between versions of NCCL."""
        is_level = self.library == "nccl" and self.name.endswith("_LEVEL") and value.isdecimal()
        return is_level or (self.type == "integer" and self._rest_after_integer(value) is not None)

    def _rest_after_integer(self, value: str) -> str | None:
        """The text after the allowed integer at the start of a value; None without one."""
        number = integer_prefix(value)
        if number is None or (self.minimum is not None and number[0] < self.minimum):
            return None
        return number[1] if self.maximum is None or number[0] <= self.maximum else None


def _words(value: str) -> list[str]:
    """Names in a list such as `^LL128` or, by function since NCCL 2.24, `Ring;allreduce:Tree,Ring`."""
    lists = [part.rpartition(":")[2] for part in value.split(";") if part]
    return [word.strip().lstrip("^") for part in lists for word in part.split(",") if word.strip()]


@dataclass(frozen=True)
class Combination:
    """Values that are known to corrupt data, to deadlock or to fail.

    Patterns match whole values, in any case. A variable that is not set has the value ''.
    """

    names: Sequence[str]
    """Variables of which one has a value like `value`."""
    value: str
    severity: str
    kind: str
    message: str
    source: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    """Patterns of other variables, which hold too. `srun --network` stands for this option."""
    on: Sequence[str] = ()
    """Features of the node (`Fabric.features`) that it needs; without any, it holds everywhere."""
    unless: str | None = None
    """Feature of nodes on which it does no harm."""
    nodes: int | None = None
    since: str | None = None
    """First version of NCCL for which it holds."""


@dataclass(frozen=True)
class Prescribed:
    """A value that the operators of a network prescribe."""

    name: str
    value: str
    on: Sequence[str]
    """Features of the node (`Fabric.features`) that it is for."""
    severity: str
    """Consequence of leaving it out (`derive.Severity`)."""
    reason: str
    source: str
    since: str | None = None
    """First version of its library for which it holds."""


@dataclass(frozen=True)
class Registry:
    """All variables by name, and the newest versions that the data was read from."""

    variables: Mapping[str, Variable]
    read_from: Mapping[str, str]
    combinations: Sequence[Combination]
    prescribed: Sequence[Prescribed]

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
    variables = {name: Variable(name, **entry) for name, entry in data["variables"].items()}
    combinations = [Combination(**each) for each in data["combinations"]]
    return Registry(
        variables, data["read_from"], combinations, [Prescribed(**each) for each in data["prescribed"]]
    )
