"""Lint of communication variables: unknown, not read, out of range, debugging, no effect, in conflict.

Pure: `lint` judges settings for an NCCL version and, if it is known, for a node's fabric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobs.fabric.derive import PLUGIN_GUIDE, reorders_ll128
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.device_names import adapter_names, interface_names, slow_interface
from jobs.fabric.findings import Finding, FindingKind, FindingSeverity, LintContext, Setting
from jobs.fabric.guards import GUARDS, Rule
from jobs.fabric.network_plugin import missing_plugin, missing_sharp_plugin
from jobs.fabric.registry import SHARP_PLUGIN, Variable, parse_version
from jobs.fabric.transport import PLUGIN_NETWORKS

_SEVERITIES = tuple(FindingSeverity)
_EFA_PLUGIN_SETS = (
    "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE", "NCCL_NVLS_CHUNKSIZE",
    "NCCL_NET_FORCE_FLUSH", "NCCL_NETDEVS_POLICY", "NCCL_TOPO_FILE",
)  # fmt: skip
"""Variables that aws-ofi-nccl sets for each type of instance, unless they are set."""


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
    derived : values that the suite derives: these are judged by the guards alone
    """
    own = frozenset(
        name for name, value in (derived or {}).items() if name in settings and settings[name].value == value
    )
    context = LintContext(settings, fabric, nodes, nccl_version, srun_network, own)
    found = [finding for rule in _RULES for finding in rule(context)]
    return sorted(found, key=lambda each: (_SEVERITIES.index(each.severity), each.name, each.kind))


def _each_variable(context: LintContext) -> Iterator[Finding]:
    for setting in context.settings.values():
        if setting.name in context.derived:
            continue
        variable = context.known.get(setting.name)
        if variable is not None:
            finding = _judge(context, setting, variable)
        else:
            finding = _unknown(context, setting) if context.known.is_judged(setting.name) else None
        if finding is not None:
            yield finding


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


def _judge(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    """The first finding about a known variable, or None."""
    for check in (_not_read, _renamed, _range, _no_effect, _old_default, _for_debugging):
        finding = check(context, setting, variable)
        if finding is not None:
            return finding
    return None


def _not_read(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    instead = f"; use {variable.replaced_by}" if variable.replaced_by else "; remove it"
    note = f" ({variable.note})" if variable.note else ""
    if variable.kind == "dead":
        message = f"it has no effect{note}{instead}"
    elif variable.library != "nccl":
        return None
    elif variable.until is not None and context.nccl_version is None:
        message = f"NCCL newer than {variable.until} does not read it{instead}"
    elif context.nccl_version is not None and not variable.is_read_by(context.nccl_version):
        message = _outside_versions(variable, context.nccl_version, instead)
    else:
        return None
    return context.finding(FindingSeverity.WARNING, FindingKind.NOT_READ, setting.name, message)


def _outside_versions(variable: Variable, nccl: str, instead: str) -> str:
    since = variable.since
    if since is not None and parse_version(nccl) < parse_version(since):
        return f"NCCL {nccl} does not read it, only {since} and newer; remove it, or update NCCL"
    return f"NCCL {nccl} does not read it, only {variable.until} and older{instead}"


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
    note = f" ({variable.note})" if variable.note else ""
    message = f"{setting.value!r} is not allowed{note}; it takes {variable.allowed()}"
    if variable.is_number_of_level(setting.value):
        message = f"numbers of levels changed between versions of NCCL; write {', '.join(variable.choices)}"
        return context.finding(FindingSeverity.WARNING, FindingKind.OUT_OF_RANGE, setting.name, message)
    number = variable.read_integer(setting.value)
    if number is not None:
        message = f"it is read as {number[0]}, without {number[1]!r}; write {number[0]}, or the number meant"
        return context.finding(FindingSeverity.WARNING, FindingKind.OUT_OF_RANGE, setting.name, message)
    return context.finding(FindingSeverity.ERROR, FindingKind.OUT_OF_RANGE, setting.name, message)


def _no_effect(context: LintContext, setting: Setting, variable: Variable) -> Finding | None:
    fabric = context.fabric
    if setting.name == "NCCL_NET" and context.nodes == 1:
        return None  # an error, which `network_on_one_node` reports
    if variable.network and context.nodes == 1:
        why = "a job of one node uses no network"
    elif fabric is not None and variable.fabrics and fabric.kind not in variable.fabrics:
        why = f"the network of this node is {fabric.kind}, not {' or '.join(variable.fabrics)}"
    elif fabric is not None and variable.library in ("nccl", SHARP_PLUGIN) and not fabric.gpus:
        why = "the node has no GPU, so NCCL is not used"
    elif fabric is not None and variable.library == SHARP_PLUGIN:
        missing = missing_sharp_plugin(fabric.software, context.value("NCCL_NET_PLUGIN"))
        if missing is None:
            return None
        why = f"only {SHARP_PLUGIN} reads it, and {missing}"
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
    if setting.name == "NCCL_PROTO" and context.fabric is not None and reorders_ll128(context.fabric):
        return None  # ^LL128 is a guard there; `jobs.fabric.guards` judges the others
    debug_log = setting.name == "NCCL_DEBUG" and setting.value.upper() in ("INFO", "TRACE")
    if debug_log and "NCCL_DEBUG_FILE" not in context.settings:
        message = f"{setting.value} floods the ranks' log; set WARN, or NCCL_DEBUG_FILE with %h.%p"
    elif variable.kind in ("debug", "internal"):
        kind = "for debugging" if variable.kind == "debug" else "undocumented"
        note = f": {variable.note}" if variable.note else ""
        message = f"{kind}, not for production{note}; remove it, unless a measurement here supports it"
    else:
        return None
    return context.finding(FindingSeverity.WARNING, FindingKind.DEBUG, setting.name, message)


def _overrides_plugin(context: LintContext) -> Iterator[Finding]:
    """EFA: the plugin's values for this type of instance are better than one value for all."""
    if context.fabric is None or context.fabric.kind is not FabricKind.EFA or context.nodes == 1:
        return
    for name in _EFA_PLUGIN_SETS:
        if name in context.settings:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, name,
                "it replaces the value that aws-ofi-nccl chooses for this type of instance; remove it",
            )  # fmt: skip


def _missing_plugin(context: LintContext) -> Iterator[Finding]:
    """EFA and Slingshot: without a plugin, NCCL uses TCP and prints no error."""
    fabric = context.fabric
    if fabric is None or fabric.kind not in PLUGIN_NETWORKS or context.nodes == 1 or not fabric.gpus:
        return
    missing = missing_plugin(fabric.software)
    chosen = {"NCCL_NET", "NCCL_NET_PLUGIN"} & context.settings.keys()  # `jobs.fabric.transport` judges these
    if missing is not None and not chosen:
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.FALLBACK, "NCCL_NET_PLUGIN",
            f"{missing.fact}, so NCCL uses TCP instead of {fabric.kind}; {missing.remedy}", PLUGIN_GUIDE,
        )  # fmt: skip


_RULES: tuple[Rule, ...] = (
    _each_variable,
    *GUARDS,
    interface_names,
    adapter_names,
    slow_interface,
    _overrides_plugin,
    _missing_plugin,
)
