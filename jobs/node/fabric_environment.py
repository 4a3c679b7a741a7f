"""Communication variables of the ranks on this node: derived, agreed with node 0, and checked.

Each node derives from its own detection. Names of devices (`GLOO_SOCKET_IFNAME`, `NCCL_IB_HCA`) may differ
between nodes. All other derived variables have to agree: node 0 publishes its own with the rendezvous, and
the other nodes take them over. A value of the user or the site wins on each node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from disttrain.config.masking import MASK, is_secret
from disttrain.config.ranks import ranks_per_node
from disttrain.errors import in_one_line
from disttrain.records.run_directory import ADAPTERS
from jobs.core.environment import AddedVariable, InheritedVariable
from jobs.fabric.derive import DerivedVariable, derive, without_given
from jobs.fabric.description import Fabric, FabricKind, Interface, Software
from jobs.fabric.detect import current_process, detect
from jobs.fabric.expected_adapters import expected_ports
from jobs.fabric.findings import Finding, FindingSeverity, Setting
from jobs.fabric.lint import lint
from jobs.fabric.node_settings import ENVIRONMENT, node_settings
from jobs.node.node_context import LOOPBACK, NodeContext
from jobs.node.node_log import log_line
from jobs.node.rendezvous import interface_towards


@dataclass(frozen=True)
class FabricEnvironment:
    """The communication variables of one node."""

    derived: tuple[DerivedVariable, ...]
    """Those to add."""
    inherited: Mapping[str, InheritedVariable]
    """Those that the ranks inherit, or that NCCL reads from a file."""
    findings: Sequence[Finding]
    software: Software
    interface: Interface | None = None
    """The interface of gloo, if it is described."""
    ports: tuple[str, ...] | None = None
    """Ports of adapters that NCCL should use; None for runs without NCCL between nodes, and where the node
    has no adapter."""

    @property
    def added(self) -> dict[str, AddedVariable]:
        """The derived variables in the form of `env.json`, and the expected ports for the verdict."""
        found = {
            each.name: AddedVariable(
                each.value, each.reason, "derived", each.evidence, each.source, each.since, each.until
            )
            for each in self.derived
        }
        if self.ports is not None:
            reason = "adapters that NCCL should use, with which the verdict on the network compares"
            found[ADAPTERS] = AddedVariable(",".join(self.ports), reason, "derived")
        return found

    @property
    def versions(self) -> dict[str, str | None]:
        """Versions of this node for which the derived values hold, in the form of `env.json`."""
        return {
            "nccl": self.software.nccl_version,
            "nvidia_driver": self.software.nvidia_driver,
            "aws_ofi_nccl": self.software.ofi_plugin_version,
            "libfabric": self.software.libfabric_version,
        }

    @property
    def published_interface(self) -> dict[str, Any] | None:
        """The interface in the form of `rendezvous.Endpoint`."""
        own = self.interface
        return {"name": own.name, "networks": own.networks} if own else None

    @property
    def agreed(self) -> list[dict[str, Any]]:
        """The derived variables that all nodes have to agree on, as JSON."""
        return [asdict(each) for each in self.derived if not each.per_node]

    def finding_records(self) -> list[dict[str, str | None]]:
        """The findings in the form of `env.json`, with secrets masked."""
        return [
            {**asdict(each), "value": MASK if is_secret(each.name) else each.value} for each in self.findings
        ]


def detect_or_nothing(record: Mapping[str, Any], root: Path = Path("/")) -> Fabric:
    """The fabric of this node, with the libraries that the ranks of a run find; an empty one, and a line in
    the log, if detection fails. NVML is not read.

    `record`: `run.json`
    """
    try:
        process = current_process()
        of_profile, of_config = _set_by_run(record)
        environ = {**process.environ, **of_profile, **of_config}
        return detect(root, replace(process, environ=environ))
    except Exception as error:  # drivers' files may hold anything
        log_line(f"the network of this node is not described: {in_one_line(error)}")
        return Fabric(FabricKind.NONE)


def interface_to_peers(node: NodeContext) -> str | None:
    """The interface by which this node reaches the others by their names; None on one machine."""
    if len(node.hosts) == 1 or set(node.hosts) == {LOOPBACK}:
        return None
    return interface_towards(node.hosts[0 if node.rank else 1])


def derive_environment(
    node: NodeContext,
    record: Mapping[str, Any],
    fabric: Fabric,
    interface: str | None,
    agreed: Sequence[Mapping[str, Any]] | None = None,
) -> FabricEnvironment:
    """The communication variables of a node of a job, of which `fabric` describes the network.

    `interface` is that of `interface_to_peers`; `agreed` are the variables that node 0 published.
    """
    return fabric_environment(
        fabric,
        record,
        os.environ,
        nodes=1 if set(node.hosts) == {LOOPBACK} else len(node.hosts),
        interface=interface,
        agreed=agreed,
    )


def fabric_environment(
    fabric: Fabric,
    record: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    nodes: int,
    interface: str | None = None,
    agreed: Sequence[Mapping[str, Any]] | None = None,
) -> FabricEnvironment:
    """The communication variables of a run on this node.

    Parameters
    ----------
    record : `run.json`
    environ : the environment of the agent
    nodes : number of nodes, 1 where all are one machine
    interface : interface by which this node reaches the others, if known
    agreed : variables that node 0 published; None on node 0, and before the rendezvous
    """
    settings = _settings(fabric, record, environ)
    given = {name: setting.value for name, setting in settings.items()}
    gpus = _gpus_per_node(fabric, record["config"])
    derived = derive(fabric, nodes, gpus, interface=interface, given=given)
    if agreed is not None:
        derived = _with_agreed(derived, tuple(DerivedVariable(**each) for each in agreed))
    added = without_given(derived, given)
    effective = {each.name: Setting(each.name, each.value, "derived") for each in added} | settings
    findings = lint(
        effective,
        fabric=fabric,
        nodes=nodes,
        nccl_version=fabric.software.nccl_version,
        srun_network=_srun_network(record),
        derived={each.name: each.value for each in derived},
    )
    gloo = effective.get("GLOO_SOCKET_IFNAME")
    described = next((each for each in fabric.interfaces if gloo and each.name == gloo.value), None)
    ports = None
    if nodes > 1 and gpus > 0 and fabric.adapters:
        ports = expected_ports(fabric, {name: each.value for name, each in effective.items()})
    return FabricEnvironment(added, _inherited(settings), findings, fabric.software, described, ports)


def _inherited(settings: Mapping[str, Setting]) -> dict[str, InheritedVariable]:
    """The settings that the environment or a file of NCCL has."""
    return {
        name: InheritedVariable(setting.value, setting.origin)
        for name, setting in settings.items()
        if setting.origin == ENVIRONMENT or setting.origin.startswith("/")
    }


def warn_of_other_network(own: Interface | None, of_node_0: Mapping[str, Any] | None) -> None:
    """Log that node 0 uses an interface of another name and network than this node does."""
    if own is None or of_node_0 is None or own.name == of_node_0["name"]:
        return
    theirs = of_node_0["networks"]
    if own.networks and theirs and not set(own.networks) & set(theirs):
        log_line(
            f"warning: this node uses {own.name} ({', '.join(own.networks)}), node 0 {of_node_0['name']} "
            f"({', '.join(theirs)}): if one network connects all nodes, name its interface as "
            "GLOO_SOCKET_IFNAME in the site profile"
        )


def log_findings(findings: Sequence[Finding]) -> None:
    """Write errors and warnings of the lint to the node's log."""
    for each in findings:
        if each.severity is not FindingSeverity.INFO:
            value = f"={MASK if is_secret(each.name) else each.value}" if each.value else ""
            log_line(f"{each.severity}: {each.name}{value} ({each.origin}): {each.message}")


def _gpus_per_node(fabric: Fabric, config: Mapping[str, Any]) -> int:
    """GPUs that ranks of this node communicate with; 0 if they use gloo alone.

    With `resources.device: cuda`, each rank has one, as some containers hide the PCI bus.
    """
    device, ranks = config["resources"]["device"], ranks_per_node(config)
    if device == "cpu":
        return 0
    return ranks if device == "cuda" else min(len(fabric.gpus), ranks)


def _settings(fabric: Fabric, record: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Setting]:
    """Communication variables that the user or the site sets, by NCCL's precedence."""
    of_profile, of_config = _set_by_run(record)
    return node_settings(fabric, environ, [(of_profile, "profile"), (of_config, "job.env")])


def _set_by_run(record: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of the site profile and of `job.env`, without secrets."""
    profile = (record.get("profile") or {}).get("environment", {})
    return {name: str(entry["value"]) for name, entry in profile.items()}, record["config"]["job"]["env"]


def _srun_network(record: Mapping[str, Any]) -> str | None:
    """Value of srun's `--network` in the run's profile; None without a profile."""
    profile = record.get("profile")
    return None if profile is None else str(profile.get("srun", {}).get("network", ""))


def _with_agreed(
    own: tuple[DerivedVariable, ...], agreed: tuple[DerivedVariable, ...]
) -> tuple[DerivedVariable, ...]:
    """This node's names of devices, and the other variables of node 0; a difference is logged."""
    mine = {each.name: each.value for each in own if not each.per_node}
    theirs = {each.name: each.value for each in agreed}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            log_line(
                f"warning: this node derives {name}={mine.get(name, '(unset)')}, node 0 "
                f"{theirs.get(name, '(unset)')}, which holds: the networks of the nodes differ"
            )
    return (*(each for each in own if each.per_node), *agreed)
