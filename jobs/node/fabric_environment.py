"""Communication variables of the ranks on this node: derived, agreed with node 0, and checked.

Each node derives from its own detection. Names of devices (`GLOO_SOCKET_IFNAME`, `NCCL_IB_HCA`) may differ
between nodes. All other derived variables have to agree: node 0 publishes its own with the rendezvous, and
the other nodes take them over. A value of the user or the site wins on each node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from disttrain.config.masking import MASK, is_secret
from disttrain.config.ranks import ranks_per_node
from disttrain.errors import in_one_line
from disttrain.records.run_directory import ADAPTERS
from jobs.core.environment import AddedVariable, InheritedVariable
from jobs.fabric.derive import DerivedVariable
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.detect import current_process, detect
from jobs.fabric.expected_adapters import expected_ports
from jobs.fabric.findings import Finding, FindingSeverity
from jobs.fabric.job_variables import ENVIRONMENT, JobVariables, job_variables, node_settings, values
from jobs.node.node_context import LOOPBACK, NodeContext
from jobs.node.node_log import log_line
from jobs.node.rendezvous import Endpoint, interface_towards


@dataclass(frozen=True)
class FabricEnvironment:
    """The communication variables of one node of a run."""

    fabric: Fabric
    variables: JobVariables
    ports: tuple[str, ...] | None = None
    """Ports of adapters that NCCL should use; None for runs without NCCL between nodes, and where the node
    has no adapter."""

    @property
    def added(self) -> dict[str, AddedVariable]:
        """The derived variables in the form of `env.json`, and the expected ports for the verdict."""
        added = {
            each.name: AddedVariable(
                each.value, each.reason, "derived", each.evidence, each.source, each.since, each.until
            )
            for each in self.variables.added
        }
        if self.ports is not None:
            reason = "adapters that NCCL should use, with which the verdict on the network compares"
            added[ADAPTERS] = AddedVariable(",".join(self.ports), reason, "derived")
        return added

    @property
    def inherited(self) -> dict[str, InheritedVariable]:
        """Variables that the ranks inherit, or that NCCL reads from a file."""
        return {
            name: InheritedVariable(setting.value, setting.origin)
            for name, setting in self.variables.settings.items()
            if setting.origin == ENVIRONMENT or setting.origin.startswith("/")
        }

    @property
    def versions(self) -> dict[str, str | None]:
        """Versions of this node for which the derived values hold, in the form of `env.json`."""
        software = self.fabric.software
        return {
            "nccl": software.nccl_version,
            "nvidia_driver": software.nvidia_driver,
            "aws_ofi_nccl": software.ofi_plugin_version,
            "libfabric": software.libfabric_version,
        }

    @property
    def interface(self) -> dict[str, Any] | None:
        """`name` and `networks` of the interface of gloo; None if it is not described."""
        name = self.variables.values.get("GLOO_SOCKET_IFNAME")
        found = (each for each in self.fabric.interfaces if each.name == name)
        return next(({"name": each.name, "networks": list(each.networks)} for each in found), None)

    @property
    def agreed(self) -> list[dict[str, Any]]:
        """The derived variables that all nodes have to agree on, as JSON."""
        return [asdict(each) for each in self.variables.added if not each.per_node]

    def finding_records(self) -> list[dict[str, str | None]]:
        """The findings in the form of `env.json`, with secrets masked."""
        return [{**asdict(each), "value": _shown(each)} for each in self.variables.findings]

    def log_findings(self) -> None:
        """Write errors and warnings of the lint to the node's log."""
        for each in self.variables.findings:
            if each.severity is not FindingSeverity.INFO:
                value = f"={_shown(each)}" if each.value else ""
                log_line(f"{each.severity}: {each.name}{value} ({each.origin}): {each.message}")

    def log_differences(self, node_0: Endpoint, own: FabricEnvironment) -> None:
        """Warn where node 0 derived other values than this node alone (`own`), and where it uses an interface
        of another name and network."""
        mine = values(each for each in own.variables.added if not each.per_node)
        theirs = {each["name"]: each["value"] for each in node_0.variables}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                log_line(
                    f"warning: this node derives {name}={mine.get(name, '(unset)')}, node 0 "
                    f"{theirs.get(name, '(unset)')}, which holds: the networks of the nodes differ"
                )
        here, there = self.interface, node_0.interface
        if not here or not there or not here["networks"] or not there["networks"]:
            return
        if here["name"] != there["name"] and set(here["networks"]).isdisjoint(there["networks"]):
            log_line(
                f"warning: this node uses {here['name']} ({', '.join(here['networks'])}), node 0 "
                f"{there['name']} ({', '.join(there['networks'])}): if one network connects all nodes, name "
                "its interface as GLOO_SOCKET_IFNAME in the site profile"
            )


def _shown(finding: Finding) -> str:
    return MASK if is_secret(finding.name) else finding.value


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


def fabric_environment(
    fabric: Fabric,
    record: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    nodes: int,
    interface: str | None = None,
    agreed: Sequence[Mapping[str, Any]] | None = None,
) -> FabricEnvironment:
    """The communication variables of a run on this node, of which `fabric` describes the network.

    Parameters
    ----------
    record : `run.json`
    environ : the environment of the agent
    nodes : number of nodes, 1 where all are one machine
    interface : interface by which this node reaches the others, if known
    agreed : variables that node 0 published; None on node 0, and before the rendezvous
    """
    of_profile, of_config = _set_by_run(record)
    gpus, profile = _gpus_per_node(fabric, record["config"]), record.get("profile")
    variables = job_variables(
        fabric,
        node_settings(fabric, environ, [(of_profile, "profile"), (of_config, "job.env")]),
        nodes,
        gpus,
        interface=interface,
        agreed=None if agreed is None else [DerivedVariable(**each) for each in agreed],
        srun_network=None if profile is None else str(profile.get("srun", {}).get("network", "")),
    )
    has_ports = nodes > 1 and gpus > 0 and fabric.adapters
    ports = expected_ports(fabric, variables.values) if has_ports else None
    return FabricEnvironment(fabric, variables, ports)


def _gpus_per_node(fabric: Fabric, config: Mapping[str, Any]) -> int:
    """GPUs that ranks of this node communicate with; 0 if they use gloo alone.

    With `resources.device: cuda`, each rank has one, as some containers hide the PCI bus.
    """
    device, ranks = config["resources"]["device"], ranks_per_node(config)
    if device == "cpu":
        return 0
    return ranks if device == "cuda" else min(len(fabric.gpus), ranks)


def _set_by_run(record: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables of the site profile and of `job.env`, without secrets."""
    profile = (record.get("profile") or {}).get("environment", {})
    return {name: str(entry["value"]) for name, entry in profile.items()}, record["config"]["job"]["env"]
