"""`fabric explain` and `fabric lint`: describe the network of a node, derive the variables for it, and judge
those that a script, a file or a run sets."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from disttrain.errors import ConfigError, message_of
from disttrain.masking import MASK, is_secret
from jobs.cli.command_output import add_json
from jobs.cli.formatting import count, table
from jobs.fabric.defects import defects
from jobs.fabric.derive import DerivedVariable, derive
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.detect import detect, detect_here
from jobs.fabric.lint import Finding, FindingSeverity, job_variables, lint, values_of
from jobs.fabric.registry import parse_version, registry
from jobs.fabric.settings import node_settings, read_settings

_NAMES = {
    FabricKind.INFINIBAND: "InfiniBand",
    FabricKind.ROCE: "RDMA over Ethernet (RoCE)",
    FabricKind.EFA: "Elastic Fabric Adapter (EFA)",
    FabricKind.SLINGSHOT: "Slingshot",
    FabricKind.ETHERNET: "TCP over Ethernet",
}
_NO_ROUTE = (
    "GLOO_SOCKET_IFNAME: not known here, because there is no default route; a job names the interface by "
    "which its nodes reach each other"
)


def explain(args: argparse.Namespace) -> int:
    """`fabric explain`: print the network and the variables."""
    fabric = detect_here() if args.root is None else detect(checked_root(args.root))
    settings = node_settings(fabric, os.environ if args.root is None else {})
    gpus = _gpus_of_job(fabric, args.gpus_per_node, is_copy=args.root is not None)
    variables = job_variables(fabric, settings, args.nodes, gpus)
    own = {each.name: each for each in derive(fabric, args.nodes, gpus)}
    judged: dict[str, list[str]] = {}
    for finding in variables.findings:
        text = f"{finding.severity} [{finding.kind}]: {finding.message}"
        judged.setdefault(finding.name, []).append(text)
    given = {name: each.value for name, each in settings.items()}
    found = defects(fabric, given)
    needed = [own.get(each.name) if each.name in given else each for each in variables.derived]
    rows = [{**asdict(each), "given": given.get(each.name)} for each in needed if each is not None]
    set_already = [
        {"name": name, "value": each.value, "origin": each.origin, "findings": judged.get(name, [])}
        for name, each in settings.items()
    ]
    add_json(fabric=asdict(fabric), defects=list(found), variables=rows, given=set_already)
    print(_text(fabric, found))
    shape = (
        f"{count(args.nodes, 'node')} with {count(gpus, 'GPU') if gpus else 'gloo'}{' each' if gpus else ''}"
    )
    if gpus > len(fabric.gpus) > 0:
        print(f"\nthis node has {count(len(fabric.gpus), 'GPU')}; the nodes of the job may differ from it")
    lines = [_NO_ROUTE] if args.nodes > 1 and _lacks_interface(fabric, given) else []
    for each in variables.added:
        lines += [f"{each.name}={each.value}", f"  {each.reason}", *_indented(judged.get(each.name, []))]
        lines.append(f"  evidence: {each.evidence}; source: {each.source}{_versions(each)}")
    none = "none but those below" if given else "none: the defaults are right"
    print(_section(f"variables for a job of {shape}", "\n".join(lines) or none))
    lines = []
    for name, setting in settings.items():
        lines += [f"{name}={setting.value}", f"  set by {setting.origin}", *_indented(judged.get(name, []))]
        if name in own and own[name].value != setting.value:
            lines.append(f"  without it: {own[name].value} ({own[name].reason})")
    if lines:
        print(_section("variables that are already set, and win", "\n".join(lines)))
    return 0


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _gpus_of_job(fabric: Fabric, wanted: int | None, *, is_copy: bool) -> int:
    """GPUs of the job on each node. Raises `ConfigError` for more than a copy of a node's files has, if any.

    This node itself may be a login node, or have slices of GPUs (MIG).
    """
    has = len(fabric.gpus)
    if is_copy and wanted is not None and wanted > has > 0:
        raise ConfigError(f"{wanted}, but this node has {count(has, 'GPU')}", at="--gpus-per-node")
    return has if wanted is None else wanted


def _lacks_interface(fabric: Fabric, given: Mapping[str, str]) -> bool:
    """Whether a job would name an interface that is unknown here."""
    is_given = any(name in given for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"))
    return fabric.kind is not FabricKind.NONE and fabric.default_interface is None and not is_given


def _versions(each: DerivedVariable) -> str:
    bounds = {f"from {each.since}": each.since, f"up to {each.until}": each.until}
    text = " ".join(bound for bound, holds in bounds.items() if holds)
    return f"; versions {text}" if text else ""


def checked_root(root: Path) -> Path:
    """Raises `ConfigError` for a path that is no copy of a node's files."""
    if not root.is_dir():
        raise ConfigError(f"no such folder: {str(root)!r}", at="--root")
    if not ((root / "sys").is_dir() or (root / "proc").is_dir()):
        raise ConfigError(
            f"{str(root)!r} has neither sys/ nor proc/: expected a copy of / of a node", at="--root"
        )
    return root


def _text(fabric: Fabric, found: Sequence[str]) -> str:
    paths = Counter(link.path for link in fabric.gpu_links)
    software = [(name, _cell(fabric.software, path)) for name, path in _SOFTWARE.items()]
    sections = {
        "adapters": _table(fabric.adapters, _ADAPTER),
        "interfaces": _table(fabric.interfaces, _INTERFACE),
        "GPUs": _table(fabric.gpus, _GPU),
        "links of GPUs": ", ".join(f"{path} ({count(n, 'pair')})" for path, n in paths.most_common()),
        "software": "\n".join(f"{name}: {text}" for name, text in software if text),
        "plugins of NCCL": _table(fabric.software.nccl_plugins, _PLUGIN),
        "files of variables that NCCL reads": "\n".join(
            f"{file.path}: {' '.join(f'{name}={value}' for name, value in file.variables) or 'empty'}"
            for file in fabric.software.nccl_files
        ),
        "defects": "\n".join(found),
    }
    product = f": {fabric.product}" if fabric.product else ""
    head = f"{fabric.host or 'unnamed node'}{product}\nnetwork between nodes: {_summary(fabric)}"
    return "\n".join([head, *(_section(title, text) for title, text in sections.items() if text)])


def _section(title: str, text: str) -> str:
    """A title and indented lines."""
    return f"\n{title}\n" + "\n".join(f"  {line}" for line in text.splitlines())


def _summary(fabric: Fabric) -> str:
    chosen, interface = fabric.compute_adapters, fabric.default_interface
    if fabric.kind is FabricKind.NONE:
        return "none: no interface of a device is up"
    if not chosen:
        return _NAMES[fabric.kind] + (f" by {interface.name}" if interface else "")
    rate = sum(each.rate_gbit_per_s or 0 for each in chosen)
    amount = f"{rate:g} Gbit/s in all" if rate else "rate unknown"
    others = len(fabric.adapters) - len(chosen)
    excluded = f"; {count(others, 'other adapter')}" if others else ""
    return f"{_NAMES[fabric.kind]}, {count(len(chosen), 'adapter')} for computing, {amount}{excluded}"


def _table(items: Sequence[object], columns: Mapping[str, str]) -> str:
    """A row for each item; `columns` are fields by title."""
    rows = [[_cell(item, path) for path in columns.values()] for item in items]
    return table([*columns], rows) if rows else ""


def _cell(item: object, path: str) -> str:
    """The text of a field, or of a field of a field; empty for None and False."""
    for name in path.split("."):
        item = getattr(item, name, None)
    if isinstance(item, tuple):
        return ",".join(item)
    return "" if item is None or item is False else "yes" if item is True else str(item)


def lint_file(args: argparse.Namespace) -> int:
    """`fabric lint`: print the findings about a file; 1 with one of severity `error`, else 0."""
    text, name = _read(args.file)
    if args.nccl:
        _check_version(args.nccl)
    fabric: Fabric | None = None  # a login node has another network than its nodes
    if args.root is not None:
        fabric = detect_here() if args.root == Path("/") else detect(checked_root(args.root))
    nccl = args.nccl or (fabric.software.nccl_version if fabric else None)
    read = read_settings(text, name)
    settings = {each: read.settings[each] for each in read.settings if registry().is_judged(each)}
    given = {name: each.value for name, each in settings.items() if each.is_literal}
    # two nodes stand for any number above one
    derived = derive(fabric, args.nodes or 2, len(fabric.gpus), given=given) if fabric else ()
    found = lint(
        settings,
        fabric=fabric,
        nodes=args.nodes,
        nccl_version=nccl,
        srun_network=read.srun_network,
        derived=values_of(derived),
    )
    add_json(findings=[_masked(each) for each in found], checked=len(settings), nccl=nccl)
    print(*map(_line, found), _lint_summary(len(settings), found, nccl), sep="\n")
    return int(any(each.severity is FindingSeverity.ERROR for each in found))


def _read(file: str) -> tuple[str, str]:
    """Text and name of a file, or of standard input. Raises `ConfigError`."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig"), "standard input" if file == "-" else file
    except UnicodeDecodeError:
        raise ConfigError("not a text in UTF-8", at=file) from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or message_of(error)}", at="FILE") from None


def _check_version(text: str) -> None:
    try:
        is_version = len(parse_version(text)) > 1
    except ValueError:
        is_version = False
    if not is_version:
        raise ConfigError(f"{text!r} is not a version such as 2.27.5", at="--nccl")


def _masked(finding: Finding) -> dict[str, str | None]:
    return {**asdict(finding), "value": MASK if is_secret(finding.name) else finding.value}


def _line(finding: Finding) -> str:
    value = f"={_masked(finding)['value']}" if finding.value else ""
    source = f" ({finding.source})" if finding.source else ""
    head = f"{finding.origin}: {finding.severity} [{finding.kind}] {finding.name}{value}"
    return f"{head}: {finding.message}{source}"


def _lint_summary(variables: int, found: list[Finding], nccl: str | None) -> str:
    version = f"NCCL {nccl}" if nccl else f"NCCL {registry().read_from['nccl']} (give another with --nccl)"
    numbers = {severity: sum(each.severity is severity for each in found) for severity in FindingSeverity}
    nouns = {FindingSeverity.ERROR: "error", FindingSeverity.WARNING: "warning", FindingSeverity.INFO: "note"}
    counts = ", ".join(count(numbers[each], noun) for each, noun in nouns.items() if numbers[each])
    return f"{count(variables, 'communication variable')} for {version}: {counts or 'no findings'}"


_ADAPTER = {
    "NAME": "name", "COMPUTING": "for_compute", "RATE": "main_port.rate", "STATE": "main_port.state",
    "NUMA": "pci.numa_node", "INTERFACE": "main_port.interfaces", "REASON": "reason",
}  # fmt: skip
_INTERFACE = {
    "NAME": "name", "STATE": "state", "MBIT/S": "speed_mbit_per_s", "DRIVER": "driver",
    "DEFAULT ROUTE": "is_default_route", "IPOIB": "is_ipoib", "MEMBERS": "members", "MASTER": "master",
    "VIRTUAL": "is_virtual",
}  # fmt: skip
_GPU = {
    "PCI": "pci.address", "MODEL": "name", "VENDOR": "pci.vendor", "DEVICE": "pci.device",
    "NUMA": "pci.numa_node", "NVLINKS": "nvlinks_active", "NVLINK-C2C": "has_c2c",
}  # fmt: skip
_PLUGIN = {"PATH": "path", "KIND": "kind", "ON THE PATH OF LIBRARIES": "is_reachable"}
_SOFTWARE = {
    "NCCL": "nccl_version", "NCCL found in": "nccl_evidence", "aws-ofi-nccl": "ofi_plugin_version",
    "libfabric": "libfabric_version", "libfabric found in": "libfabric_evidence",
    "NVIDIA driver": "nvidia_driver", "nvidia_peermem": "has_peermem", "gdrcopy": "has_gdrcopy",
    "kernel": "kernel", "locked memory in bytes": "memory_lock",
}  # fmt: skip
