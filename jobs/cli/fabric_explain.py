"""`fabric explain`: describe the network of a node, and derive the environment variables for it."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from disttrain.errors import ConfigError
from jobs.cli.command_output import add_json
from jobs.cli.formatting import count, some_of, table
from jobs.fabric.defects import defects
from jobs.fabric.derive import DerivedVariable, derive
from jobs.fabric.description import Adapter, Fabric, FabricKind, Interface, Software
from jobs.fabric.detect import detect, detect_here
from jobs.fabric.findings import Setting
from jobs.fabric.job_variables import job_variables, node_settings

_NAMES = {
    FabricKind.INFINIBAND: "InfiniBand",
    FabricKind.ROCE: "RDMA over Ethernet (RoCE)",
    FabricKind.EFA: "Elastic Fabric Adapter (EFA)",
    FabricKind.SLINGSHOT: "Slingshot",
    FabricKind.ETHERNET: "TCP over Ethernet",
    FabricKind.NONE: "none",
}
_NO_ROUTE = (
    "GLOO_SOCKET_IFNAME: not known here, because there is no default route; a job names the interface by "
    "which its nodes reach each other"
)


def run(args: argparse.Namespace) -> int:
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
    if settings:
        print(_section("variables that are already set, and win", _given_lines(settings, judged, own)))
    return 0


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


def _given_lines(
    settings: Mapping[str, Setting], judged: Mapping[str, list[str]], own: Mapping[str, DerivedVariable]
) -> str:
    """Each variable with its origin, its findings, and the value that would be derived without it."""
    lines = []
    for name, each in settings.items():
        lines += [f"{name}={each.value}", f"  set by {each.origin}", *_indented(judged.get(name, []))]
        if name in own and own[name].value != each.value:
            lines.append(f"  without it: {own[name].value} ({own[name].reason})")
    return "\n".join(lines)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _versions(each: DerivedVariable) -> str:
    bounds = [
        *([f"from {each.since}"] if each.since else []),
        *([f"up to {each.until}"] if each.until else []),
    ]
    return f"; versions {' '.join(bounds)}" if bounds else ""


def checked_root(root: Path) -> Path:
    """Raises `ConfigError` for a path that is no copy of a node's files."""
    if not root.is_dir():
        raise ConfigError(f"no such folder: {str(root)!r}", at="--root")
    if not ((root / "sys").is_dir() or (root / "proc").is_dir()):
        raise ConfigError(
            f"{str(root)!r} has neither sys/ nor proc/: expected a copy of / of a node", at="--root"
        )
    return root


def _text(fabric: Fabric, found: tuple[str, ...]) -> str:
    parts = [
        f"{fabric.host or 'unnamed node'}{f': {fabric.product}' if fabric.product else ''}",
        f"network between nodes: {_summary(fabric)}",
        _section("adapters", _adapter_table(fabric.adapters)),
        _section("interfaces", _interface_table(fabric.interfaces)),
        _section("GPUs", _gpu_lines(fabric)),
        _section("software", _software_lines(fabric.software)),
        _section("files of variables that NCCL reads", _file_lines(fabric.software)),
        _section("defects", "\n".join(found)),
    ]
    return "\n".join(part for part in parts if part)


def _section(title: str, text: str) -> str:
    """A title and indented lines; empty without lines."""
    return f"\n{title}\n" + "\n".join(f"  {line}" for line in text.splitlines()) if text else ""


def _summary(fabric: Fabric) -> str:
    chosen = fabric.compute_adapters
    if not chosen:
        interface = fabric.default_interface
        if fabric.kind is FabricKind.NONE:
            is_any_up = any(each.is_up for each in fabric.interfaces)
            reason = "only virtual interfaces are up" if is_any_up else "no interface is up"
            return f"{_NAMES[fabric.kind]}: {reason}"
        speed = _gbit(interface.speed_mbit_per_s / 1000) if interface and interface.speed_mbit_per_s else ""
        at = f" by {interface.name}{f' at {speed}' if speed else ''}" if interface else ""
        return f"{_NAMES[fabric.kind]}{at}"
    rates = [each.rate_gbit_per_s or 0 for each in chosen]
    span = _gbit(rates[0]) if len(set(rates)) == 1 else f"{min(rates):g} to {_gbit(max(rates))}"
    each_rate = f"{span} each, {_gbit(sum(rates))} in all" if all(rates) else "rate unknown"
    others = len(fabric.adapters) - len(chosen)
    excluded = f"; {count(others, 'other adapter')}" if others else ""
    return f"{_NAMES[fabric.kind]}, {count(len(chosen), 'adapter')} for computing, {each_rate}{excluded}"


def _gbit(rate: float | None) -> str:
    return f"{rate:g} Gbit/s" if rate else ""


def _adapter_table(adapters: tuple[Adapter, ...]) -> str:
    rows = []
    for each in adapters:
        port = each.active_port or (each.ports[0] if each.ports else None)
        node = each.pci.numa_node if each.pci else None
        rows.append(
            (
                each.name,
                "yes" if each.for_compute else "no",
                (port.rate or "") if port else "",
                (port.state or "") if port else "",
                "" if node is None else str(node),
                ",".join(port.interfaces) if port else "",
                each.reason,
            )
        )
    head = ("NAME", "COMPUTING", "RATE", "STATE", "NUMA", "INTERFACE", "REASON")
    return table(head, rows) if rows else ""


def _interface_table(interfaces: tuple[Interface, ...]) -> str:
    rows = [
        (
            each.name,
            each.state or "",
            _gbit(each.speed_mbit_per_s / 1000 if each.speed_mbit_per_s else None),
            each.driver or "",
            ", ".join(_notes(each)),
        )
        for each in interfaces
    ]
    return table(("NAME", "STATE", "SPEED", "DRIVER", "NOTE"), rows) if rows else ""


def _notes(interface: Interface) -> list[str]:
    return [
        *(["default route"] if interface.is_default_route else []),
        *(["IPoIB"] if interface.is_ipoib else []),
        *([f"bond of {' '.join(interface.members)}"] if interface.members else []),
        *([f"member of {interface.master}"] if interface.master else []),
        *(["virtual"] if interface.is_virtual else []),
    ]


def _gpu_lines(fabric: Fabric) -> str:
    if not fabric.gpus:
        return ""
    names = Counter(gpu.name or f"PCI device {gpu.pci.vendor}:{gpu.pci.device}" for gpu in fabric.gpus)
    paths = Counter(link.path for link in fabric.gpu_links)
    lines = [", ".join(f"{number} x {name}" for name, number in names.items())]
    if paths:
        lines.append("links: " + ", ".join(f"{path} ({count(n, 'pair')})" for path, n in paths.most_common()))
    if fabric.has_c2c:
        lines.append("NVLink-C2C to the processor")
    by_node: dict[int, list[str]] = {}
    for gpu in fabric.gpus:
        if gpu.pci.numa_node is not None:
            by_node.setdefault(gpu.pci.numa_node, []).append(gpu.pci.address)
    lines += [f"on NUMA node {node}: {' '.join(places)}" for node, places in sorted(by_node.items())]
    return "\n".join(lines)


def _software_lines(software: Software) -> str:
    modules = [
        *(["nvidia_peermem"] if software.has_peermem else []),
        *(["gdrcopy"] if software.has_gdrcopy else []),
    ]
    plugins = [
        f"{each.path}{'' if each.is_reachable else ' (not on the path of libraries)'}"
        for each in software.nccl_plugins
    ]
    lock = software.memory_lock_bytes
    rows = [
        ("NCCL", _with_path(software.nccl_version, software.nccl_evidence)),
        ("NCCL plugins", some_of(plugins)),
        ("aws-ofi-nccl", software.ofi_plugin_version),
        ("libfabric", _with_path(software.libfabric_version, software.libfabric_evidence)),
        ("NVIDIA driver", software.nvidia_driver),
        ("GPUDirect modules", ", ".join(modules)),
        ("kernel", software.kernel),
        ("locked memory", f"{lock / 1024:g} KiB" if lock is not None else software.memory_lock),
    ]
    known = [(name, text) for name, text in rows if text]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in known)


def _with_path(version: str | None, path: str | None) -> str | None:
    return f"{version}  {path}" if version and path else version


def _file_lines(software: Software) -> str:
    return "\n".join(
        f"{file.path}: {' '.join(f'{name}={value}' for name, value in file.variables) or 'empty'}"
        for file in software.nccl_files
    )
