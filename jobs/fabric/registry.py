"""Environment variables of NCCL, torch, gloo and libfabric: versions, class, allowed values, former defaults.

The data is `variables.json` beside this module, one line for each variable: `library` and the versions that
read it (`since`, `until`), `kind` (`system`, `debug`: not for production, `internal`: not documented, `alias`
or `dead`), type and allowed values, `defaults` as pairs of a version and the default from it on, and the
`fabrics` on which it has an effect. `combinations` fail or corrupt data, `prescribed` lists values that a
network needs. For a new release of NCCL, compare `NCCL_PARAM`, `ncclGetEnv` and the user guide with the
previous tag, and raise `read_from`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

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
_INTEGER = re.compile(r"\s*([+-]?(?:0x[0-9a-f]+|0+|[1-9][0-9]*))(?!\S)", re.IGNORECASE | re.ASCII)
"""A number up to a blank, which ends it for NCCL (`strtoll`): none with letters after it, none in octal."""
_WORDS_OF_LIST = re.compile(r"[^\s,;:^]+(?=\s*(?:[,;]|$))")
"""Words of `^LL128` or, by function since NCCL 2.24, of `Ring;allreduce:Tree,Ring`."""
_NONZERO = re.compile(r"\s*[+-]?(?:0x0*[1-9a-f]|0*[1-9])", re.IGNORECASE | re.ASCII)


def is_nonzero(value: str | None) -> bool:
    """Whether a variable that is a switch is on: text without a number is 0."""
    return _NONZERO.match(value or "") is not None


def parse_version(text: str) -> tuple[int, ...]:
    """`2.27.5` or `2.27.5+cuda12` as numbers. Raises `ValueError`."""
    return tuple(int(part) for part in text.split("+")[0].split("-")[0].split("."))


def holds_at(version: str | None, since: str | None, until: str | None = None) -> bool:
    """Whether a version is between two others, both included. An unknown version counts as the newest."""
    if version is None:
        return until is None
    at = parse_version(version)
    return not (since and at < parse_version(since)) and not (until and at > parse_version(until))


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
        defaults = [(first, default) for first, default in self.defaults if holds_at(version, first)]
        changed = [later for (_, old), (later, _) in pairwise(defaults) if old == value]
        if not changed or defaults[-1][1] == value:
            return None
        now = defaults[-1][1]
        return changed[-1], "chosen automatically" if now in AUTOMATIC else now

    def is_read_by(self, version: str | None) -> bool:
        """Whether a version of the library reads it."""
        return self.kind != "dead" and holds_at(version, self.since, self.until)

    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.type == "integer":
            bounds = {"from": self.minimum, "to": self.maximum}
            return " ".join(["an integer", *(f"{word} {n}" for word, n in bounds.items() if n is not None)])
        return ", ".join(self._words())

    def accepts(self, value: str) -> bool:
        """Whether a value is an allowed one. True without a rule."""
        if self.type == "integer":
            found = _INTEGER.match(value)
            number = int(found[1], 0) if found else None
            return number is not None and not (
                (self.minimum is not None and number < self.minimum)
                or (self.maximum is not None and number > self.maximum)
            )
        words = _WORDS_OF_LIST.findall(value) if self.type == "list" else [value]
        known = [word.casefold() for word in self._words()]
        return self.type is None or (bool(words) and all(word.casefold() in known for word in words))

    def _words(self) -> Sequence[str]:
        return _BOOLEANS[self.library] if self.type == "boolean" else self.choices


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
    unless_set: str | None = None
    """Variable whose value replaces it."""


@dataclass(frozen=True)
class Registry:
    """All variables by name, and the newest versions that the data was read from."""

    variables: Mapping[str, Variable]
    read_from: Mapping[str, str]
    combinations: Sequence[Combination]
    prescribed: Sequence[Prescribed]

    def is_of_interest(self, name: str) -> bool:
        """Whether a name, or a word of a name with blanks, is in the registry or has a prefix of its
        libraries. An indented comment, which NCCL takes for a name, is of none."""
        words = [] if name.lstrip().startswith("#") else name.split()
        return any(word in self.variables or word.startswith(_OPEN_PREFIXES) for word in words)

    def is_judged(self, name: str) -> bool:
        """Whether the lint has a rule for a name: also where its prefix is misspelt."""
        return self.is_of_interest(name) or self.misspelt(name) is not None

    def misspelt(self, name: str) -> str | None:
        """The known name that an unknown one most likely stands for; None for known ones, names of other
        libraries, without a close one, and where neither name has a prefix of the libraries."""
        if name in self.variables or name.startswith(READ_BY_OTHERS) or name.lstrip().startswith("#"):
            return None
        live = [each.name for each in self.variables.values() if each.kind != "dead"]
        close = next(iter(difflib.get_close_matches(name, live, n=1, cutoff=_CLOSE)), "")
        is_open = any(each.startswith(_OPEN_PREFIXES) for each in (name, close))
        return close if close and is_open else None


@cache
def registry() -> Registry:
    """The registry of the shipped data."""
    data = json.loads(_DATA.read_text())
    return Registry(
        {name: Variable(name, **entry) for name, entry in data["variables"].items()},
        data["read_from"],
        [Combination(**entry) for entry in data["combinations"]],
        [Prescribed(**entry) for entry in data["prescribed"]],
    )
