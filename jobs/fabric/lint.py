"""Lint of communication variables by the registry: unknown, not read, out of range, for debugging, without
effect, in a bad combination; and names of devices that a node lacks.

Pure: `lint` judges settings for an NCCL version and, if it is known, for a node's fabric.
"""

from __future__ import annotations

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

_SEVERITIES = tuple(FindingSeverity)
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
    for setting in context.settings.values():
        variable = context.known.get(setting.name)
        if setting.name in context.derived or not context.known.is_judged(setting.name):
            continue
        if variable is None:
            yield _unknown(context, setting)
            continue
        rules = (_not_read, _renamed, _range, _no_effect, _old_default, _for_debugging)
        judged = (rule(context, setting, variable) for rule in rules)
        yield from [finding for finding in judged if finding is not None][:1]


def _unknown(context: LintContext, setting: Setting) -> Finding:
    words = setting.name.split()
    if words != [setting.name]:  # of NCCL's files, which are not shell scripts
        return context.finding(
            FindingSeverity.WARNING, FindingKind.NOT_READ, setting.name,
            "NCCL takes all text before = as the name, blanks included, so this sets nothing; write "
            f"{words[-1]}={setting.value.strip()}",
        )  # fmt: skip
    meant = context.known.misspelt(setting.name)
    if meant is not None:
        message = f"no library reads it; did you mean {meant!r}?"
        return context.finding(FindingSeverity.ERROR, FindingKind.UNKNOWN, setting.name, message)
    newest = context.known.read_from["nccl"]
    library = f"no NCCL up to {newest}" if setting.name.startswith("NCCL_") else "no known library"
    return context.finding(
        FindingSeverity.WARNING, FindingKind.UNKNOWN, setting.name,
        f"{library} reads it, though a plugin may; remove it, unless yours does",
    )  # fmt: skip


def _not_read(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    nccl, since, until = context.nccl_version, variable.since, variable.until
    instead = f"; use {variable.replaced_by}" if variable.replaced_by else "; remove it"
    if variable.kind == "dead":
        message = f"it has no effect{_note(variable)}{instead}"
    elif variable.library != "nccl" or (until is None if nccl is None else variable.is_read_by(nccl)):
        return None
    elif nccl is None:
        message = f"NCCL newer than {until} does not read it{instead}"
    elif since is not None and parse_version(nccl) < parse_version(since):
        message = f"NCCL {nccl} does not read it, only {since} and newer; remove it, or update NCCL"
    else:
        message = f"NCCL {nccl} does not read it, only {until} and older{instead}"
    return context.finding(FindingSeverity.WARNING, FindingKind.NOT_READ, setting.name, message)


def _note(variable: Variable) -> str:
    return f" ({variable.note})" if variable.note else ""


def _renamed(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    if variable.kind != "alias" or variable.replaced_by is None:
        return None
    message = f"a former name, still read; write {variable.replaced_by}"
    # The version of torch is unknown here, and an older one reads the former name alone.
    severity = FindingSeverity.WARNING if variable.library == "nccl" else FindingSeverity.INFO
    return context.finding(severity, FindingKind.RENAMED, setting.name, message)


def _range(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    if not setting.is_literal or variable.accepts(setting.value):
        return None
    part = variable.reads_part(setting.value)
    return context.finding(
        FindingSeverity.WARNING if part else FindingSeverity.ERROR, FindingKind.OUT_OF_RANGE, setting.name,
        f"{setting.value!r} is not allowed{_note(variable)}; it takes {variable.allowed()}",
    )  # fmt: skip


def _no_effect(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    fabric = context.fabric
    if variable.network and context.nodes == 1:
        why = "a job of one node uses no network"
    elif fabric is not None and variable.fabrics and fabric.kind not in variable.fabrics:
        why = f"the network of this node is {fabric.kind}, not {' or '.join(variable.fabrics)}"
    elif fabric is not None and variable.library == "nccl" and not fabric.gpus:
        why = "the node has no GPU, so NCCL is not used"
    else:
        return None
    return context.finding(
        FindingSeverity.INFO, FindingKind.NO_EFFECT, setting.name, f"no effect: {why}; remove it"
    )


def _old_default(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    changed = variable.former_default(setting.value, context.nccl_version)
    if changed is None:
        return None
    now = variable.default_at(context.nccl_version) or "chosen automatically"
    library = "NCCL" if variable.library == "nccl" else variable.library
    return context.finding(
        FindingSeverity.WARNING, FindingKind.OLD_DEFAULT, setting.name,
        f"{setting.value} was the default before {library} {changed}; the default is now {now}; remove it",
    )  # fmt: skip


def _for_debugging(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    if variable.kind not in ("debug", "internal"):
        return None
    kind = "for debugging" if variable.kind == "debug" else "undocumented"
    note = f": {variable.note}" if variable.note else ""
    message = f"{kind}, not for production{note}; remove it, unless a measurement here supports it"
    return context.finding(FindingSeverity.WARNING, FindingKind.DEBUG, setting.name, message)


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
    if gloo is not None and gloo.startswith(("^", "=")):
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.OUT_OF_RANGE, "GLOO_SOCKET_IFNAME",
            "gloo takes plain names of interfaces, without = or ^; write the name alone",
        )  # fmt: skip
        gloo = None
    if fabric is None or not fabric.interfaces:
        return
    names = ["lo", *(each.name for each in fabric.interfaces)]
    for name in [name for name in (gloo or "").split(",") if name and name not in names][:1]:
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "GLOO_SOCKET_IFNAME",
            f"the node has no interface {name!r}, so gloo fails; it has {', '.join(names)}"
            f"{nearest(name, names)}",
        )  # fmt: skip
    if nccl and not nccl.lstrip("=").startswith("lo") and not named_interfaces(nccl, fabric):
        up = [each for each in fabric.interfaces if each.is_up]
        names = [each.name for each in up if not each.is_virtual] or [each.name for each in up]
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_SOCKET_IFNAME",
            f"it selects none of the node's interfaces, so NCCL fails; write = and one of {', '.join(names)}",
        )  # fmt: skip
    if gloo and context.nodes != 1 and needs_fast_tcp(fabric, len(fabric.gpus)):
        faster = faster_interfaces(fabric, gloo)
        speed = max((each.speed_mbit_per_s or 0 for each in faster), default=0)
        fastest = [each.name for each in faster if each.speed_mbit_per_s == speed]
        if fastest:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.FALLBACK, "GLOO_SOCKET_IFNAME",
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
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_IB_HCA",
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
        yield context.finding(FindingSeverity.WARNING, FindingKind.CONFLICT, "NCCL_IB_HCA", message, source)
