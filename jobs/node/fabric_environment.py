"""Communication variables of the ranks on this node: derived, agreed with node 0, and checked.

Each node derives from its own detection. Names of devices (`GLOO_SOCKET_IFNAME`, `NCCL_IB_HCA`) may differ
between nodes. All other derived variables have to agree: node 0 publishes its own with the rendezvous, and
the other nodes take them over. A value of the user or the site wins on each node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from disttrain.config.ranks import ranks_per_node
from disttrain.errors import in_one_line
from disttrain.records.masking import MASK, is_secret
from jobs.core.environment import AddedVariable, InheritedVariable
from jobs.fabric.derive import DerivedVariable, derive, without_given
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.detect import current_process, detect
from jobs.fabric.findings import Finding, FindingSeverity, Setting
from jobs.fabric.lint import lint
from jobs.fabric.registry import registry
from jobs.node.node_context import LOOPBACK, NodeContext
from jobs.node.node_log import log_line
from jobs.node.rendezvous import interface_towards

_ENVIRONMENT = "environment"


@dataclass(frozen=True)
class FabricEnvironment:
    """The communication variables of one node."""

    derived: tuple[DerivedVariable, ...]
    """Those to add."""
    inherited: Mapping[str, InheritedVariable]
    """Those that the ranks inherit, or that NCCL reads from a file."""
    findings: Sequence[Finding]

    @property
    def added(self) -> dict[str, AddedVariable]:
        """The derived variables in the form of `env.json`."""
        return {
            each.name: AddedVariable(each.value, each.reason, "derived", each.evidence, each.source)
            for each in self.derived
        }

    @property
    def agreed(self) -> list[dict[str, Any]]:
        """The derived variables that all nodes have to agree on, as JSON."""
        return [asdict(each) for each in self.derived if not each.per_node]

    def finding_records(self) -> list[dict[str, str]]:
        """The findings in the form of `env.json`, with secrets masked."""
        return [
            {**asdict(each), "value": MASK if is_secret(each.name) else each.value} for each in self.findings
        ]


def detect_or_nothing(root: Path = Path("/")) -> Fabric:
    """The fabric of this node; an empty one, and a line in the log, if detection fails. NVML is not read."""
    try:
        return detect(root, current_process())
    except Exception as error:  # drivers' files may hold anything
        log_line(f"the network of this node is not described: {in_one_line(error)}")
        return Fabric(FabricKind.NONE)


def derive_environment(
    node: NodeContext, record: Mapping[str, Any], agreed: Sequence[Mapping[str, Any]] | None = None
) -> FabricEnvironment:
    """The communication variables of a node of a job; `agreed` are those that node 0 published."""
    one_machine = set(node.hosts) == {LOOPBACK}
    peer = node.hosts[0 if node.rank else 1] if len(node.hosts) > 1 and not one_machine else None
    return fabric_environment(
        detect_or_nothing(),
        record,
        os.environ,
        nodes=1 if one_machine else len(node.hosts),
        interface=interface_towards(peer) if peer else None,
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
    inherited = {
        name: InheritedVariable(setting.value, setting.origin)
        for name, setting in settings.items()
        if setting.origin == _ENVIRONMENT or setting.origin.startswith("/")
    }
    return FabricEnvironment(added, inherited, findings)


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
    profile = (record.get("profile") or {}).get("environment", {})
    job_env = {
        name: environ.get(name, value) if value == MASK else value
        for name, value in record["config"]["job"]["env"].items()
    }
    sources = [
        *((dict(file.variables), file.path) for file in reversed(fabric.software.nccl_files)),
        (environ, _ENVIRONMENT),
        ({name: entry["value"] for name, entry in profile.items()}, "profile"),
        (job_env, "job.env"),
    ]
    known = registry()
    return {
        name: Setting(name, str(value), origin)
        for variables, origin in sources
        for name, value in variables.items()
        if known.is_of_interest(name)
    }


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
