"""Check all nodes of an attempt before its ranks start (docs/preflight.md). Standard library only.

Each node collects its facts. Node 0 judges them, writes `preflight.json`, and puts nodes at fault on the
exclusion list of the runs folder. In mode full, the ranks of all nodes measure their links together before.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.config.ranks import ranks_per_node
from disttrain.config.requested_device import asks_for_gpus
from disttrain.errors import ConfigError, message_of
from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir, checkpoint_steps
from jobs.checks import node_checks, node_facts
from jobs.checks.ceiling import judged_bandwidth
from jobs.checks.finding import Finding
from jobs.checks.gpu_health import NodeGpus, has_driver, read_node_gpus
from jobs.checks.node_facts import NodeFacts
from jobs.checks.verdict import errors, verdict_record
from jobs.core import environment, excluded_nodes, journal
from jobs.core.attempt import checkpoint_folder
from jobs.fabric.description import Fabric
from jobs.node import gather, links, rendezvous
from jobs.node.node_context import NodeContext
from jobs.node.node_log import log_line

_VERDICT_MARGIN_S = 75.0
"""Time for the verdict of node 0 to reach the other nodes: NFS keeps a folder up to 60 s in its cache."""


@dataclass(frozen=True)
class NodeNetwork:
    """Network and GPUs of this node, and the variables of its ranks."""

    fabric: Fabric
    interface: str | None
    """The interface by which this node reaches the others over TCP."""
    variables: Mapping[str, environment.AddedVariable]
    read_gpus: Callable[[], NodeGpus] = read_node_gpus
    """The GPUs of the node by NVML."""


def resolved_mode(configured: str, *, several_machines: bool, gpus: int) -> str:
    """`basic`, `full` or `off` for a value of `job.preflight`.

    `gpus`: those that the ranks of one node use. `auto` does not measure on one machine, where the
    measurement may take as long as a short run; one with fewer than two GPUs has no links to measure.
    """
    if configured == "off":
        return "off"
    if several_machines:
        return "full" if configured == "full" or (configured == "auto" and gpus > 0) else "basic"
    return "full" if configured == "full" and gpus > 1 else "basic"


@dataclass(frozen=True)
class _Start:
    """The start of one attempt, as this node checks it."""

    node: NodeContext
    attempt: Attempt
    config: Mapping[str, Any]
    mode: str
    env: Mapping[str, str]
    """Environment of the ranks, so that their transport is measured."""
    began: float

    @property
    def facts_within_s(self) -> float:
        """Longest wait for the facts of other nodes, whose agents may start later."""
        return float(self.config["job"]["rendezvous_timeout_s"])

    @property
    def port_file(self) -> Path:
        """Written by node 0 once the facts of all nodes are in order and the links are to be measured."""
        return self.attempt.preflight_folder / "port.json"

    def measure(self, port: int) -> str | None:
        """Run this node's ranks of the measurement; the reason if they failed."""
        return links.measure(self.node, self.attempt, self.config, self.env, port)


def run_preflight(
    node: NodeContext, attempt: Attempt, record: Mapping[str, Any], network: NodeNetwork
) -> str | None:
    """Check the nodes; the reason, one line, why this attempt must not start. `record` is `run.json`.

    Raises `RendezvousError` when node 0 is silent, `NodeFailed` when another node has failed, and `JobEnded`.
    """
    config, began = record["config"], time.monotonic()
    several = len(node.hosts) > 1 and not node.one_machine
    wants_gpus, ranks = asks_for_gpus(config["resources"]["device"]), ranks_per_node(config)
    uses_nccl = wants_gpus and has_driver()
    mode = resolved_mode(
        config["job"].get("preflight", "auto"),
        several_machines=several,
        # several agents of one machine do not measure together
        gpus=ranks if uses_nccl and (several or len(node.hosts) == 1) else 0,
    )
    missing_gpus = node.allocation.missing_gpus(record) if node.allocation else None
    if mode == "off":
        if node.rank == 0:
            gather.publish(attempt, attempt.preflight, verdict_record(attempt.number, "off", node.hosts))
        return missing_gpus
    if node.rank > 0 and not several:
        return None  # node 0 has checked this machine
    if mode == "full" or several:
        attempt.preflight_folder.mkdir(exist_ok=True)
    env = environment.rank_environment(os.environ, network.variables)
    own = node_facts.collect(
        node.rank,
        node.hosts[node.rank],
        network.fabric,
        network.read_gpus() if wants_gpus else NodeGpus(None),
        ranks=ranks,
        wants_gpus=wants_gpus,
        uses_nccl=uses_nccl,
        environ=env,
        interface=network.interface,
        folders=[node.run.path, checkpoint_folder(node.run, config)],
        rate_folder=_rate_folder(node, attempt, mode),
        missing_gpus=missing_gpus,
        is_alone=not node.one_machine,
    )
    if several:
        gather.publish(attempt, attempt.preflight_facts(node.rank), dataclasses.asdict(own))
    start = _Start(node, attempt, config, mode, env, began)
    message = (_follow(start) if node.rank else _judge(start, own, several=several))["message"]
    return None if message is None else f"pre-flight: {message}"


def _rate_folder(node: NodeContext, attempt: Attempt, mode: str) -> Path | None:
    """The folder in which this node measures storage: in mode basic on node 0 alone; None without a
    scheduler, where short runs share one machine."""
    if mode == "full":
        return attempt.preflight_folder
    return attempt.path if node.rank == 0 and not node.one_machine else None


def space_needed(run: RunDir, config: Mapping[str, Any]) -> dict[str, int]:
    """Free bytes that the run needs, by folder: for its records, and for one more checkpoint."""
    folder = checkpoint_folder(run, config)
    newest = [folder / f"step-{step:08d}" for step in checkpoint_steps(folder)][:1]
    size = sum(path.stat().st_size for step in newest for path in step.rglob("*") if path.is_file())
    least = node_checks.MIN_FREE_BYTES
    return {str(run.path): least} | {str(folder): least + size}


def _follow(start: _Start) -> dict[str, Any]:
    """The verdict of node 0; take part in the measurement if there is one."""
    wait = functools.partial(gather.answer_of_node_0, start.attempt, start.node.allocation)
    verdict = start.attempt.preflight
    answer = wait(start.facts_within_s + _VERDICT_MARGIN_S, verdict, start.port_file)
    if "port" in answer:
        if (problem := start.measure(answer["port"])) is not None:
            log_line(f"pre-flight: {problem}")
        answer = wait(links.WITHIN_S + _VERDICT_MARGIN_S, verdict)
    return answer


def _judge(start: _Start, own: NodeFacts, *, several: bool) -> dict[str, Any]:
    """Wait for the facts of the other nodes, judge all of them, and publish the verdict."""
    node, attempt = start.node, start.attempt
    seen, waiting, findings = {0: (own, own.time)}, time.monotonic(), []
    if several:
        within_s = start.facts_within_s
        seen = gather.gather_facts(attempt, node.allocation, within_s, len(node.hosts))
        findings += node_checks.check_shared_folder(str(node.run.path), node.hosts, seen, within_s)
    waited_s = time.monotonic() - waiting
    opened = datetime.fromisoformat(read_json(attempt.record)["started"]).timestamp()
    offsets = {
        each.host: node_checks.clock_offset(each.time, opened, at)
        for rank, (each, at) in seen.items()
        if rank > 0
    }
    facts = [each for each, _ in seen.values()]
    needed = space_needed(node.run, start.config)
    findings += node_checks.findings_of_facts(facts, offsets, node.hosts, needed)
    if node.allocation is not None and not node.one_machine:
        entries = excluded_nodes.among(_runs_folder(node), _cluster_name(node), node.hosts)
        findings += node_checks.check_exclusions(entries)
    bandwidth = None
    if start.mode == "full" and not errors(findings):
        bandwidth, problems = _measured(start, facts)
        findings += problems
    seconds = time.monotonic() - start.began
    record = verdict_record(
        attempt.number, start.mode, node.hosts, facts, offsets, findings, bandwidth, seconds, waited_s
    )
    gather.publish(attempt, attempt.preflight, record)
    _log(own, findings, bandwidth or {})
    if record["at_fault"] and node.allocation is not None:
        _exclude(node, record["at_fault"], findings)
    return record


def _measured(start: _Start, facts: Sequence[NodeFacts]) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The bandwidth, measured together with the other nodes, on node 0. A failure is a warning."""
    with rendezvous.reserve_port() as reserved:
        port = reserved.getsockname()[1]
        gather.publish(start.attempt, start.port_file, {"port": port})
        problem = start.measure(port)
    result = read_json_or_none(links.result_file(start.attempt))
    if problem is None and result is not None:
        return judged_bandwidth(result, facts, start.node.hosts)
    remedy = "training may start all the same; --skip-preflight leaves the measurement out"
    return None, [Finding("warning", "all_reduce", problem or "the measurement wrote no result", remedy)]


def _log(own: NodeFacts, findings: Sequence[Finding], bandwidth: Mapping[str, Any]) -> None:
    lines = [f"{finding.severity}: {finding.problem}; {finding.remedy}" for finding in findings]
    if bandwidth.get("run_bytes"):
        size = f"{bandwidth['run_bytes'] / 2**20:.1f} MiB"
        lines.append(f"the messages of the run have {size} ({bandwidth['run_bytes_reason']})")
    if bandwidth.get("not_judged"):
        lines.append(bandwidth["not_judged"])
    if own.write_bytes_per_s is not None and own.read_bytes_per_s is not None:
        rates = (
            f"writes {own.write_bytes_per_s / 1e6:.0f} MB/s and reads {own.read_bytes_per_s / 1e6:.0f} MB/s"
        )
        lines.append(f"node {own.host} {rates} in the run directory")
    for line in lines:
        log_line(f"pre-flight: {line}")


def _runs_folder(node: NodeContext) -> Path:
    return node.run.path.parent.parent


def _cluster_name(node: NodeContext) -> str | None:
    return (journal.entry(node.run, node.submission).read("intent") or {}).get("cluster_name")


def _exclude(node: NodeContext, hosts: Sequence[str], findings: Sequence[Finding]) -> None:
    """Put nodes at fault on the exclusion list of the runs folder, or log why that fails."""
    root, cluster, by = _runs_folder(node), _cluster_name(node), f"{node.run.sweep}/{node.run.name}"
    try:
        for host in hosts:
            reason = next(finding.problem for finding in errors(findings) if host in finding.hosts)
            excluded_nodes.add(root, excluded_nodes.ExcludedNode.until(host, reason, cluster=cluster, by=by))
    except (OSError, ConfigError) as error:
        log_line(f"not put on the exclusion list: {', '.join(hosts)}: {message_of(error)}")
    else:
        log_line(f"excluded from later submissions to {root}: {', '.join(hosts)} (submit.py nodes)")
