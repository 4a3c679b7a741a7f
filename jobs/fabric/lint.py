"""Lint of communication variables by the registry: unknown, not read, out of range, for debugging, without
effect, in a bad combination; and names of devices that a node lacks.

Pure: `lint` judges settings for an NCCL version and, if it is known, for a node's fabric.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from disttrain.errors import nearest
from disttrain.records.nccl_names import parse_names
from jobs.fabric.derive import USER_GUIDE, adapter_list, faster_interfaces, named_interfaces, needs_fast_tcp
from jobs.fabric.description import AdapterKind, Fabric, FabricKind
from jobs.fabric.expected_adapters import permitted_ports
from jobs.fabric.findings import Finding, FindingKind, FindingSeverity, LintContext, Setting
from jobs.fabric.integers import is_nonzero
from jobs.fabric.registry import Combination, Variable, parse_version

ERROR, WARNING, INFO = _SEVERITIES = tuple(FindingSeverity)
Judgement = tuple[FindingSeverity, FindingKind, str]
SRUN_NETWORK = "srun --network"
"""Name of srun's option among the variables of a combination."""


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
    srun_network : srun's `--network`, empty without it; None if unknown
    derived : values that the suite derives: these are judged by their combinations alone
    """
    own = frozenset(
        name for name, value in (derived or {}).items() if name in settings and settings[name].value == value
    )
    context = LintContext(settings, fabric, nodes, nccl_version, srun_network, own)
    rules = (_each_variable, _combinations, _interfaces, _adapters)
    findings = [finding for rule in rules for finding in rule(context)]
    return sorted(findings, key=lambda each: (_SEVERITIES.index(each.severity), each.name, each.kind))


def _each_variable(context: LintContext) -> Iterator[Finding]:
    for name, setting in context.settings.items():
        variable = context.known.get(name)
        if name in context.derived or not context.known.is_judged(name):
            continue
        judged = _unknown(context, setting) if variable is None else _judge(context, setting, variable)
        for severity, kind, message in itertools.islice(judged, 1):
            yield context.finding(severity, kind, name, message)


def _unknown(context: LintContext, setting: Setting) -> Iterator[Judgement]:
    words = setting.name.split()
    if words != [setting.name]:  # of NCCL's files, which are not shell scripts
        yield WARNING, FindingKind.NOT_READ, (
            "NCCL takes all text before = as the name, blanks included, so this sets nothing; write "
            f"{words[-1]}={setting.value.strip()}"
        )  # fmt: skip
    if (meant := context.known.misspelt(setting.name)) is not None:
        yield ERROR, FindingKind.UNKNOWN, f"no library reads it; did you mean {meant!r}?"
    newest = context.known.read_from["nccl"]
    library = f"no NCCL up to {newest}" if setting.name.startswith("NCCL_") else "no known library"
    text = f"{library} reads it, though a plugin may; remove it, unless yours does"
    yield WARNING, FindingKind.UNKNOWN, text


def _judge(context: LintContext, setting: Setting, variable: Variable) -> Iterator[Judgement]:
    """Judgements of a known variable, the most important one first."""
    nccl, value = context.nccl_version, setting.value
    note = f" ({variable.note})" if variable.note else ""
    if (reason := _not_read(variable, nccl)) is not None:
        yield WARNING, FindingKind.NOT_READ, reason
    if variable.kind == "alias":
        # The version of torch is unknown here, and an older one reads the former name alone.
        severity = WARNING if variable.library == "nccl" else INFO
        yield severity, FindingKind.RENAMED, f"a former name, still read; write {variable.replaced_by}"
    if setting.is_literal and not variable.accepts(value):
        text = f"{value!r} is not allowed{note}; it takes {variable.allowed()}"
        yield WARNING if variable.reads_part(value) else ERROR, FindingKind.OUT_OF_RANGE, text
    if (reason := _no_effect(context, variable)) is not None:
        yield INFO, FindingKind.NO_EFFECT, f"no effect: {reason}; remove it"
    if (stale := variable.stale_default(value, nccl)) is not None:
        library = "NCCL" if variable.library == "nccl" else variable.library
        yield WARNING, FindingKind.OLD_DEFAULT, (
            f"{value} was the default before {library} {stale[0]}; the default is now {stale[1]}; remove it"
        )  # fmt: skip
    if variable.kind in ("debug", "internal"):
        kind = "for debugging" if variable.kind == "debug" else "undocumented"
        about = f": {variable.note}" if variable.note else ""
        text = f"{kind}, not for production{about}; remove it, unless a measurement here supports it"
        yield WARNING, FindingKind.DEBUG, text


def _not_read(variable: Variable, nccl: str | None) -> str | None:
    """The reason why this NCCL, or none, reads a variable."""
    instead = f"; use {variable.replaced_by}" if variable.replaced_by else "; remove it"
    if variable.kind == "dead":
        return f"it has no effect{f' ({variable.note})' if variable.note else ''}{instead}"
    if variable.library != "nccl" or (variable.until is None if nccl is None else variable.is_read_by(nccl)):
        return None
    if nccl is None:
        return f"NCCL newer than {variable.until} does not read it{instead}"
    if variable.since is not None and parse_version(nccl) < parse_version(variable.since):
        return f"NCCL {nccl} does not read it, only {variable.since} and newer; remove it, or update NCCL"
    return f"NCCL {nccl} does not read it, only {variable.until} and older{instead}"


def _no_effect(context: LintContext, variable: Variable) -> str | None:
    """The reason why a variable has no effect on the job's nodes."""
    fabric = context.fabric
    if variable.network and context.nodes == 1:
        return "a job of one node uses no network"
    if fabric is not None and variable.fabrics and fabric.kind not in variable.fabrics:
        return f"the network of this node is {fabric.kind}, not {' or '.join(variable.fabrics)}"
    if fabric is not None and variable.library == "nccl" and not fabric.gpus:
        return "the node has no GPU, so NCCL is not used"
    return None


def _combinations(context: LintContext) -> Iterator[Finding]:
    present = context.fabric.features if context.fabric else set()
    for each in context.known.combinations:
        if (
            each.nodes not in (None, context.nodes)
            or each.unless in present
            or not present.issuperset(each.on)
        ):
            continue
        if (each.on and context.nodes == 1) or not _is_since(each, context.nccl_version):
            continue
        if all(_is_like(context, name, pattern) for name, pattern in each.others.items()):
            severity, kind = FindingSeverity(each.severity), FindingKind(each.kind)
            for name in each.names:
                if _is_like(context, name, each.value):
                    yield context.finding(severity, kind, name, each.message, each.source)


def _is_since(combination: Combination, nccl_version: str | None) -> bool:
    """Whether it holds for a version of NCCL; an unknown one counts as new."""
    first = combination.since
    return first is None or nccl_version is None or parse_version(nccl_version) >= parse_version(first)


def _is_like(context: LintContext, name: str, pattern: str) -> bool:
    """Whether a value is known and like a pattern."""
    value = context.srun_network if name == SRUN_NETWORK else context.value(name)
    if value is None and (name == SRUN_NETWORK or name in context.settings):
        return False  # unknown, or computed by a shell
    return re.fullmatch(pattern, value or "", re.IGNORECASE) is not None


def _interfaces(context: LintContext) -> Iterator[Finding]:
    """Interfaces that the node lacks, and a slow one where TCP should be fast."""
    gloo, nccl = context.value("GLOO_SOCKET_IFNAME"), context.value("NCCL_SOCKET_IFNAME")
    fabric = context.fabric
    if fabric is None or not fabric.interfaces:
        return
    if gloo and gloo.startswith(("^", "=")):
        gloo = None  # a combination of the registry
    names = ["lo", *(each.name for each in fabric.interfaces)]
    for name in [name for name in (gloo or "").split(",") if name and name not in names][:1]:
        yield context.finding(
            ERROR, FindingKind.CONFLICT, "GLOO_SOCKET_IFNAME",
            f"the node has no interface {name!r}, so gloo fails; it has {', '.join(names)}"
            f"{nearest(name, names)}",
        )  # fmt: skip
    if nccl and not nccl.lstrip("=").startswith("lo") and not named_interfaces(nccl, fabric):
        up = [each for each in fabric.interfaces if each.is_up]
        names = [each.name for each in up if not each.is_virtual] or [each.name for each in up]
        yield context.finding(
            ERROR, FindingKind.CONFLICT, "NCCL_SOCKET_IFNAME",
            f"it selects none of the node's interfaces, so NCCL fails; write = and one of {', '.join(names)}",
        )  # fmt: skip
    if gloo and context.nodes != 1 and needs_fast_tcp(fabric, len(fabric.gpus)):
        faster = faster_interfaces(fabric, gloo)
        speed = max((each.speed_mbit_per_s or 0 for each in faster), default=0)
        fastest = [each.name for each in faster if each.speed_mbit_per_s == speed]
        if fastest:
            yield context.finding(
                WARNING, FindingKind.FALLBACK, "GLOO_SOCKET_IFNAME",
                f"the node has a faster one ({speed / 1000:g} Gbit/s); if it connects all nodes, set "
                f"GLOO_SOCKET_IFNAME={fastest[0]} and NCCL_SOCKET_IFNAME=={','.join(fastest)} in the profile",
            )  # fmt: skip


def _adapters(context: LintContext) -> Iterator[Finding]:
    """A list of adapters that permits no active port; adapters that are not there; ambiguous prefixes."""
    value, fabric = context.value("NCCL_IB_HCA"), context.fabric
    network = (context.value("NCCL_NET") or "").casefold()
    is_unused = network == "socket" or is_nonzero(context.value("NCCL_IB_DISABLE")) or context.nodes == 1
    if value is None or fabric is None or is_unused:
        return
    if fabric.kind not in (FabricKind.INFINIBAND, FabricKind.ROCE):
        return
    adapters = [each for each in fabric.adapters if each.kind is AdapterKind.VERBS]
    names = ", ".join(each.name for each in adapters)
    permitted = [port for each in adapters for port in permitted_ports(each, {"NCCL_IB_HCA": value})]
    source = f"{USER_GUIDE}#nccl-ib-hca"
    if not any(port.is_active for port in permitted):
        right = fabric.compute_adapters or [each for each in adapters if each.active_port]
        end = "NCCL fails" if network == "ib" else "NCCL uses TCP"
        yield context.finding(
            ERROR, FindingKind.CONFLICT, "NCCL_IB_HCA",
            f"it permits no active port of {names}, so {end}; set {adapter_list(right)}", source,
        )  # fmt: skip
        return
    for entry in parse_names(value).entries:
        named = [each.name for each in adapters if entry.matches(each.name)]
        if not named:
            message = f"the node has no adapter {entry.name!r}; it has {names}"
        elif not entry.is_exact and entry.name in named and len(named) > 1:
            more = ", ".join(name for name in named if name != entry.name)
            message = f"{entry.name} is a prefix, and also names {more}; begin the list with ="
        else:
            continue
        yield context.finding(WARNING, FindingKind.CONFLICT, "NCCL_IB_HCA", message, source)
