"""Variables of the ranks on this node: derived from its network, of its processors, and the end of the job.

Each node derives from its own detection. A value of the user or the site wins. The pre-flight warns where
nodes derive different values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.errors import in_one_line
from disttrain.masking import MASK, is_secret
from disttrain.records.json_files import read_json
from disttrain.records.process_limits import list_text
from disttrain.records.run_directory import ADAPTERS, PROCESSORS, Attempt
from disttrain.records.run_json import ranks_per_node
from jobs.checks.gpu_health import node_gpus
from jobs.checks.rank_python import RankPython, nccl_version
from jobs.core import environment, run_code
from jobs.core.environment import AddedVariable, InheritedVariable
from jobs.fabric.choose_adapters import expected_ports
from jobs.fabric.description import Fabric, FabricKind, Gpu
from jobs.fabric.detect import current_process, detect
from jobs.fabric.lint import Finding, FindingSeverity, JobVariables, job_variables
from jobs.fabric.settings import ENVIRONMENT, node_settings
from jobs.node.allocation import LOOPBACK, Allocation, NodeContext, log_line
from jobs.node.rendezvous import interface_towards

BINDING = ("--numa-binding", "node")
"""Of torchrun: each rank gets all processors of the NUMA node of its GPU that the job may use."""
_HELPER_THREADS = 1
"""Processors of a rank beside those of its compute threads: for the threads of NCCL and telemetry."""


@dataclass(frozen=True)
class NodeNetwork:
    """The network of one node of a run, and its communication variables."""

    fabric: Fabric
    variables: JobVariables
    interface: str | None = None
    """The interface by which this node reaches the others over TCP."""
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
    def agreement(self) -> dict[str, str]:
        """Values that should be equal on all nodes: the derived variables but for names of devices."""
        shared = [f"{each.name}={each.value}" for each in self.variables.added if not each.per_node]
        return {"interface": self.interface or "", "derived variables": " ".join(shared)}

    def record(self, added: Mapping[str, AddedVariable]) -> dict[str, Any]:
        """`env.json`, with the variables of the ranks; those that they inherit, or that NCCL reads from a
        file; findings with secrets masked; and versions for which the derived values hold."""
        inherited = {
            name: InheritedVariable(setting.value, setting.origin)
            for name, setting in self.variables.settings.items()
            if setting.origin == ENVIRONMENT or setting.origin.startswith("/")
        }
        findings = [{**asdict(each), "value": _shown(each)} for each in self.variables.findings]
        software = self.fabric.software
        versions = {
            "nccl": software.nccl_version,
            "nvidia_driver": software.nvidia_driver,
            "aws_ofi_nccl": software.ofi_plugin_version,
            "libfabric": software.libfabric_version,
        }
        return environment.env_record(added, inherited, findings, versions)

    def log_findings(self) -> None:
        """Write errors and warnings of the lint to the node's log."""
        for each in self.variables.findings:
            if each.severity is not FindingSeverity.INFO:
                value = f"={_shown(each)}" if each.value else ""
                log_line(f"{each.severity}: {each.name}{value} ({each.origin}): {each.message}")


def _shown(finding: Finding) -> str:
    return MASK if is_secret(finding.name) else finding.value


def detect_or_nothing(
    record: Mapping[str, Any], root: Path = Path("/"), python_path: Sequence[str] | None = None
) -> Fabric:
    """The fabric of this node, with the libraries that the ranks of a run find; an empty one, and a line in
    the log, if detection fails. NVML is not read.

    `record`: `run.json`. `python_path`: module search path of the ranks; None: that of this process.
    """
    try:
        process = current_process(python_path)
        of_profile, of_config = _set_by_run(record)
        environ = {**process.environ, **of_profile, **of_config}
        return detect(root, replace(process, environ=environ))
    except Exception as error:  # drivers' files may hold anything
        log_line(f"the network of this node is not described: {in_one_line(error)}")
        return Fabric(FabricKind.NONE)


def network_of_node(
    node: NodeContext, record: Mapping[str, Any], python: RankPython | None = None
) -> NodeNetwork:
    """The network of this node, with the interface by which it reaches the others by their names.

    `python`: that of the ranks, which finds the libraries; those of an image are not examined.
    """
    fabric = detect_or_nothing(record, python_path=python.path if python else None)
    if python is not None and python.container is not None:
        fabric = replace(fabric, software=fabric.software.of_image(nccl_version(python.packages)))
    interface = None
    nodes = 1 if set(node.hosts) == {LOOPBACK} else len(node.hosts)
    if nodes > 1:
        interface = interface_towards(node.hosts[0 if node.rank else 1])
    return node_network(fabric, record, os.environ, nodes, interface)


def node_network(
    fabric: Fabric,
    record: Mapping[str, Any],
    environ: Mapping[str, str],
    nodes: int,
    interface: str | None = None,
) -> NodeNetwork:
    """The communication variables of a run on this node, of which `fabric` describes the network.

    Parameters
    ----------
    record : `run.json`
    environ : the environment of the agent
    nodes : number of nodes, 1 where all are one machine
    interface : interface by which this node reaches the others, if known
    """
    of_profile, of_config = _set_by_run(record)
    gpus, profile = _gpus_per_node(fabric, record["config"]), record.get("profile")
    variables = job_variables(
        fabric,
        node_settings(fabric, environ, [(of_profile, "profile"), (of_config, "job.env")]),
        nodes,
        gpus,
        interface=interface,
        srun_network=None if profile is None else str(profile.get("srun", {}).get("network", "")),
    )
    has_ports = nodes > 1 and gpus > 0 and fabric.adapters
    ports = expected_ports(fabric, variables.values) if has_ports else None
    return NodeNetwork(fabric, variables, variables.values.get("GLOO_SOCKET_IFNAME", interface), ports)


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


def variables_of_ranks(
    node: NodeContext,
    attempt: Attempt,
    record: Mapping[str, Any],
    network: NodeNetwork,
    python: RankPython,
) -> dict[str, AddedVariable]:
    """The variables to add on this node, with those of its network and the end of the job's time."""
    config, command = record["config"], run_code.command_of_run(node.run, record)
    added = environment.added_variables(
        config,
        os.environ,
        one_machine=set(node.hosts) == {LOOPBACK},
        source=run_code.code_record(record).get("source"),
        fabric=network.added,
        profile=record.get("profile"),
        search_path=command.search_path(os.environ.get("PYTHONPATH", "")) if command else None,
    )
    if command is not None:
        node.run.checkpoints.mkdir(exist_ok=True)
        added |= environment.command_variables(node.run, attempt, config)
        derived = environment.tracking_of_run(node.run, record["run_key"])
        if environment.idle_limit_s(record):
            derived |= environment.evidence_variables(attempt)
        given = {*added, *os.environ}
        added |= {name: variable for name, variable in derived.items() if name not in given}
    end = node.allocation.end_time() if node.allocation else None
    if end is None:
        started = datetime.fromisoformat(read_json(attempt.record)["started"]).timestamp()
        end = started + 60 * float(config["job"]["time_limit_min"])
    added["DISTTRAIN_DEADLINE"] = environment.deadline_variable(end)
    bound = bound_processors(config, node.allocation, network.fabric, has_numactl=python.has_numactl)
    return added | {PROCESSORS: bound}


def bound_processors(
    config: Mapping[str, Any], allocation: Allocation | None, fabric: Fabric, *, has_numactl: bool
) -> AddedVariable:
    """The processors of the job on this node if torchrun binds the ranks to those of their GPUs' NUMA nodes,
    else empty; with the reason.

    torchrun ends where it cannot bind a rank, so the binding is requested only where it will succeed.
    """
    cpuset = os.sched_getaffinity(0)
    obstacle = _obstacle(config, allocation, fabric, cpuset, has_numactl=has_numactl)
    if obstacle is not None:
        return AddedVariable("", f"ranks are not bound: {obstacle}", "derived")
    log_line("binding: each rank uses the processors of the NUMA node of its GPU")
    reason = f"torchrun binds the ranks ({' '.join(BINDING)}); these are the processors of all of them"
    return AddedVariable(list_text(cpuset), reason, "derived")


def gpus_of_ranks(config: Mapping[str, Any]) -> Sequence[Gpu]:
    """The GPUs that a `command` computes on here."""
    resources = config["resources"]
    if resources["device"] == "cpu":
        return ()
    most = 1 if resources["device"] == "shared" else int(resources["gpus_per_node"])
    return node_gpus().reading.gpus[:most]


def _obstacle(
    config: Mapping[str, Any],
    allocation: Allocation | None,
    fabric: Fabric,
    cpuset: Collection[int],
    *,
    has_numactl: bool,
) -> str | None:
    """The first reason not to bind the ranks."""
    ranks, resources = ranks_per_node(config), config["resources"]
    job = config["job"]
    if job.get("binding", "auto") == "none":
        return "job.binding is none"
    if job.get("launcher", "torchrun") != "torchrun":
        return f"job.launcher is {job['launcher']}"
    if allocation is None:
        return "runs on this machine share its processors"
    if ranks == 1:
        return "one rank uses all processors of the job"
    if resources["device"] in ("cpu", "shared"):
        return "no rank has a GPU of its own"
    if not has_numactl:
        return "torchrun needs the command numactl, which it does not find"
    gpus = node_gpus().reading.gpus[:ranks]
    if len(gpus) < ranks:
        return "no GPU was found for each rank"
    places = {gpu.pci.address: gpu.pci for gpu in fabric.gpus}
    known = [places.get(gpu.pci.address, gpu.pci) for gpu in gpus]
    if any(pci.numa_node is None for pci in known):
        return "the kernel does not name the NUMA node of each GPU"
    near = [frozenset(pci.cores).intersection(cpuset) for pci in known]
    needed = int(resources["threads_per_rank"]) + _HELPER_THREADS
    if any(len(processors) < needed * near.count(processors) for processors in near):
        return "the job has too few processors on the NUMA nodes of its GPUs"
    return None
