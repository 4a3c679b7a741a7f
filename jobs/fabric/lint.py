"""Lint of communication variables by the registry: unknown, not read, out of range, for debugging, without
effect, in a bad combination; and names of devices that a node lacks. Then the variables of a job on one node.

Pure: `lint` judges settings for an NCCL version and, if it is known, for a node's fabric. Names, ranges,
versions and bad combinations are rows of `variables.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from disttrain.errors import nearest
from disttrain.records.nccl_names import parse_names
from jobs.fabric.choose_adapters import permitted_ports
from jobs.fabric.derive import (
    USER_GUIDE,
    DerivedVariable,
    adapter_list,
    derive,
    faster_interfaces,
    named_interfaces,
    needs_fast_tcp,
)
from jobs.fabric.description import AdapterKind, Fabric, FabricKind
from jobs.fabric.registry import Combination, Variable, holds_at, is_nonzero, registry
from jobs.fabric.settings import Setting


class FindingSeverity(StrEnum):
    """`error`: the job fails, hangs, computes wrong data, or a name is misspelt."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


ERROR, WARNING, INFO = _SEVERITIES = tuple(FindingSeverity)
SRUN_NETWORK = "srun --network"
"""Name of srun's option among the variables of a combination."""


@dataclass(frozen=True)
class Finding:
    """One finding; `message` is one line that ends with the step to take."""

    severity: FindingSeverity
    kind: str
    """A key of the table in docs/communication.md."""
    name: str
    value: str
    origin: str
    message: str
    source: str | None = None
    """Document that has the rule."""


Judgement = tuple[FindingSeverity, str, str]
"""Severity, kind and message."""
Row = tuple[FindingSeverity, str, str, str, str | None]
"""Severity, kind, name, message and source."""


def lint(
    settings: Mapping[str, Setting],
    *,
    fabric: Fabric | None = None,
    nodes: int | None = None,
    nccl_version: str | None = None,
    srun_network: str | None = None,
    derived: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Findings about settings, the worst first; at most one of the registry's rules for each variable.

    Parameters
    ----------
    nodes : number of nodes of the job; None skips the rules that depend on it
    nccl_version : None is the newest
    srun_network : srun's `--network`, empty without it; None if unknown
    derived : values that the suite derives: these are judged by their combinations alone
    """
    nccl = nccl_version or registry().read_from["nccl"]
    values = {name: each.value if each.is_literal else None for name, each in settings.items()}
    rows: list[Row] = []
    for name, setting in settings.items():
        if registry().is_judged(name) and (derived or {}).get(name) != setting.value:
            variable = registry().variables.get(name)
            judged = _unknown(setting) if variable is None else _judge(setting, variable, nccl, fabric, nodes)
            rows += [(severity, kind, name, message, None) for severity, kind, message in [*judged][:1]]
    rows += _combinations(values | {SRUN_NETWORK: srun_network}, nccl, fabric, nodes)
    if fabric is not None and fabric.interfaces:
        rows += _interfaces(values, fabric, nodes)
    if fabric is not None and fabric.kind in (FabricKind.INFINIBAND, FabricKind.ROCE) and nodes != 1:
        rows += _adapters(values, fabric)
    none = Setting("", "", "this node")
    found = [
        Finding(severity, kind, name, at.value, at.origin, message, source)
        for severity, kind, name, message, source in rows
        for at in [settings.get(name, none)]
    ]
    return sorted(found, key=lambda each: (_SEVERITIES.index(each.severity), each.name, each.kind))


def _unknown(setting: Setting) -> Iterator[Judgement]:
    words = setting.name.split()
    if words != [setting.name]:  # of NCCL's files, which are not shell scripts
        yield WARNING, "not-read", (
            "NCCL takes all text before = as the name, blanks included, so this sets nothing; write "
            f"{words[-1]}={setting.value.strip()}"
        )  # fmt: skip
    if (meant := registry().misspelt(setting.name)) is not None:
        yield ERROR, "unknown", f"no library reads it; did you mean {meant!r}?"
    newest = registry().read_from["nccl"]
    library = f"no NCCL up to {newest}" if setting.name.startswith("NCCL_") else "no known library"
    yield WARNING, "unknown", f"{library} reads it, though a plugin may; remove it, unless yours does"


def _judge(
    setting: Setting, variable: Variable, nccl: str, fabric: Fabric | None, nodes: int | None
) -> Iterator[Judgement]:
    """Judgements of a known variable, the most important one first."""
    value, of_nccl = setting.value, variable.library == "nccl"
    note = f" ({variable.note})" if variable.note else ""
    instead = f"use {variable.replaced_by}" if variable.replaced_by else "remove it"
    if variable.kind == "dead":
        yield WARNING, "not-read", f"it has no effect{note}; {instead}"
    if of_nccl and not variable.is_read_by(nccl):
        is_newer = variable.since is not None and not holds_at(nccl, variable.since)
        only = f"{variable.since} and newer" if is_newer else f"{variable.until} and older"
        yield WARNING, "not-read", f"NCCL {nccl} does not read it, only {only}; {instead}"
    if variable.kind == "alias":
        # The version of torch is unknown here, and an older one reads the former name alone.
        text = f"a former name, still read; write {variable.replaced_by}"
        yield WARNING if of_nccl else INFO, "renamed", text
    if setting.is_literal and not variable.accepts(value):
        # NCCL reads the number of a level, which changed between its versions, in place of its name
        severity = WARNING if variable.type == "choice" and value.isdecimal() else ERROR
        yield severity, "out-of-range", f"{value!r} is not allowed{note}; it takes {variable.allowed()}"
    reasons = [] if not variable.network or nodes != 1 else ["a job of one node uses no network"]
    if fabric is not None and variable.fabrics and fabric.kind not in variable.fabrics:
        reasons.append(f"the network of this node is {fabric.kind}, not {' or '.join(variable.fabrics)}")
    if fabric is not None and of_nccl and not fabric.gpus:
        reasons.append("the node has no GPU, so NCCL is not used")
    yield from ((INFO, "no-effect", f"no effect: {reason}; remove it") for reason in reasons)
    if (stale := variable.stale_default(value, nccl if of_nccl else None)) is not None:
        library = "NCCL" if of_nccl else variable.library
        text = f"{value} was the default before {library} {stale[0]}; the default is now {stale[1]}"
        yield WARNING, "old-default", f"{text}; remove it"
    if variable.kind in ("debug", "internal"):
        kind = "for debugging" if variable.kind == "debug" else "undocumented"
        about = f": {variable.note}" if variable.note else ""
        text = f"{kind}, not for production{about}; remove it, unless a measurement here supports it"
        yield WARNING, "debug", text


def _combinations(
    values: Mapping[str, str | None], nccl: str, fabric: Fabric | None, nodes: int | None
) -> Iterator[Row]:
    present = fabric.features if fabric else set()

    def is_like(name: str, pattern: str) -> bool:
        """Whether a value is known and like a pattern."""
        value = values.get(name, "")
        return value is not None and re.fullmatch(pattern, value, re.IGNORECASE) is not None

    def holds(each: Combination) -> bool:
        on_nodes = each.nodes in (None, nodes) and not (each.on and nodes == 1)
        on_network = each.unless not in present and present.issuperset(each.on)
        return on_nodes and on_network and holds_at(nccl, each.since)

    for each in filter(holds, registry().combinations):
        if all(is_like(name, pattern) for name, pattern in each.others.items()):
            for name in each.names:
                if is_like(name, each.value):
                    yield FindingSeverity(each.severity), each.kind, name, each.message, each.source


def _interfaces(values: Mapping[str, str | None], fabric: Fabric, nodes: int | None) -> Iterator[Row]:
    """Interfaces that the node lacks, and a slow one where TCP should be fast."""
    gloo, nccl = (values.get(f"{library}_SOCKET_IFNAME") or "" for library in ("GLOO", "NCCL"))
    names = ["lo", *(each.name for each in fabric.interfaces)]
    if not gloo.startswith(("^", "=")):  # those are a combination of the registry
        for name in [name for name in gloo.split(",") if name and name not in names][:1]:
            text = f"the node has no interface {name!r}, so gloo fails; it has {', '.join(names)}"
            yield ERROR, "conflict", "GLOO_SOCKET_IFNAME", text + nearest(name, names), None
    if nccl and not nccl.lstrip("=").startswith("lo") and not named_interfaces(nccl, fabric):
        up = [each for each in fabric.interfaces if each.is_up]
        names = [each.name for each in up if not each.is_virtual] or [each.name for each in up]
        text = "it selects none of the node's interfaces, so NCCL fails; write = and one of "
        yield ERROR, "conflict", "NCCL_SOCKET_IFNAME", text + ", ".join(names), None
    faster = faster_interfaces(fabric, gloo)
    if faster and nodes != 1 and needs_fast_tcp(fabric, len(fabric.gpus)):
        speed = max(each.speed_mbit_per_s or 0 for each in faster)
        fastest = [each.name for each in faster if each.speed_mbit_per_s == speed]
        yield WARNING, "fallback", "GLOO_SOCKET_IFNAME", (
            f"the node has a faster one ({speed / 1000:g} Gbit/s); if it connects all nodes, set "
            f"GLOO_SOCKET_IFNAME={fastest[0]} and NCCL_SOCKET_IFNAME=={','.join(fastest)} in the profile"
        ), None  # fmt: skip


def _adapters(values: Mapping[str, str | None], fabric: Fabric) -> Iterator[Row]:
    """A list of adapters that permits no active port; adapters that are not there; ambiguous prefixes."""
    value, network = values.get("NCCL_IB_HCA"), (values.get("NCCL_NET") or "").casefold()
    if value is None or network == "socket" or is_nonzero(values.get("NCCL_IB_DISABLE")):
        return
    adapters = [each for each in fabric.adapters if each.kind is AdapterKind.VERBS]
    has, source = ", ".join(each.name for each in adapters), f"{USER_GUIDE}#nccl-ib-hca"
    permitted = [port for each in adapters for port in permitted_ports(each, {"NCCL_IB_HCA": value})]
    if not any(port.is_active for port in permitted):
        right = fabric.compute_adapters or [each for each in adapters if each.active_port]
        end = "NCCL fails" if network == "ib" else "NCCL uses TCP"
        text = f"it permits no active port of {has}, so {end}; set {adapter_list(right)}"
        yield ERROR, "conflict", "NCCL_IB_HCA", text, source
        return
    for entry in parse_names(value):
        named = [each.name for each in adapters if entry.matches(each.name)]
        more = ", ".join(name for name in named if name != entry.name)
        if not named:
            text = f"the node has no adapter {entry.name!r}; it has {has}"
            yield WARNING, "conflict", "NCCL_IB_HCA", text, source
        elif more and entry.name in named:
            text = f"{entry.name} is a prefix, and also names {more}; begin the list with ="
            yield WARNING, "conflict", "NCCL_IB_HCA", text, source


@dataclass(frozen=True)
class JobVariables:
    """The communication variables of a job on one node: a value that the user or the site sets wins over a
    derived one."""

    settings: Mapping[str, Setting]
    """Those that the user or the site sets."""
    derived: Sequence[DerivedVariable]
    """Those that the network needs, also where they are set."""
    findings: Sequence[Finding]

    @property
    def added(self) -> list[DerivedVariable]:
        """The derived variables that are not set."""
        return [each for each in self.derived if each.name not in self.settings]

    @property
    def values(self) -> dict[str, str]:
        """The values that hold."""
        return values_of(self.derived) | values_of(self.settings.values())


def job_variables(
    fabric: Fabric,
    settings: Mapping[str, Setting],
    nodes: int,
    gpus_per_node: int,
    *,
    interface: str | None = None,
    srun_network: str | None = None,
) -> JobVariables:
    """The variables of a job with these settings; see `derive` and `lint` for the other parameters."""
    derived = derive(fabric, nodes, gpus_per_node, interface=interface, given=values_of(settings.values()))
    found = lint(
        {each.name: Setting(each.name, each.value, "derived") for each in derived} | dict(settings),
        fabric=fabric,
        nodes=nodes,
        nccl_version=fabric.software.nccl_version,
        srun_network=srun_network,
        derived=values_of(derived),
    )
    return JobVariables(settings, derived, found)


def values_of(variables: Iterable[DerivedVariable | Setting]) -> dict[str, str]:
    """Values by name."""
    return {each.name: each.value for each in variables}
