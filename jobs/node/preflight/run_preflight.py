"""Check all nodes of an attempt before its ranks start, and agree on the verdict. Standard library only.

Each node collects its facts. Node 0 judges them, writes `preflight.json`, and puts nodes at fault on the
exclusion list of the runs folder. In mode full, the ranks of all nodes then measure their bandwidth together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from disttrain.config.ranks import ranks_per_node
from disttrain.config.requested_device import asks_for_gpus
from disttrain.errors import ConfigError, message_of
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import Attempt, RunDir, checkpoint_steps
from jobs.core import excluded_nodes, journal
from jobs.core.attempt import checkpoint_folder
from jobs.core.environment import AddedVariable
from jobs.fabric.description import Fabric
from jobs.node import rendezvous
from jobs.node.node_context import NodeContext
from jobs.node.node_gpus import NodeGpus, has_driver, read_node_gpus
from jobs.node.node_log import log_line
from jobs.node.preflight import bandwidth, checks, collect_facts, exchange, verdict
from jobs.node.preflight.checks import ClockOffset, NodeFacts, Problem

_VERDICT_MARGIN_S = 75.0
"""Time for the verdict of node 0 to reach the other nodes: NFS keeps a folder up to 60 s in its cache."""


@dataclass
class _Findings:
    """Facts and problems that node 0 has collected."""

    began: float
    facts: list[NodeFacts] = field(default_factory=list)
    offsets: dict[str, ClockOffset] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    bandwidth: dict[str, Any] | None = None
    waited_s: float = 0.0


@dataclass(frozen=True)
class NodeNetwork:
    """Network and GPUs of this node, and the variables of its ranks."""

    fabric: Fabric
    interface: str | None
    """The interface by which this node reaches the others over TCP."""
    variables: Mapping[str, AddedVariable]
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


def run_preflight(
    node: NodeContext, attempt: Attempt, record: Mapping[str, Any], network: NodeNetwork
) -> str | None:
    """Check the nodes; the reason, one line, why this attempt must not start. `record` is `run.json`.

    Raises `RendezvousError` when node 0 is silent, `NodeFailed` when another node has failed, and `JobEnded`.
    """
    config = record["config"]
    several = len(node.hosts) > 1 and not node.one_machine
    has_gpus = asks_for_gpus(config["resources"]["device"]) and has_driver()
    mode = resolved_mode(
        config["job"].get("preflight", "auto"),
        several_machines=several,
        # several agents of one machine do not measure together
        gpus=ranks_per_node(config) if has_gpus and (several or len(node.hosts) == 1) else 0,
    )
    if mode == "off":
        return _skipped(node, attempt, record)
    if node.rank > 0 and not several:
        return None  # node 0 has checked this machine
    began = time.monotonic()
    if mode == "full" or several:
        attempt.preflight_folder.mkdir(exist_ok=True)
    own = _own_facts(node, attempt, record, mode, network)
    if several:
        exchange.write_facts(attempt, own)
    if node.rank > 0:
        return _follow(node, attempt, config, network)
    found = _Findings(began, [own])
    _judge(node, attempt, config, found)
    if mode == "full" and not checks.is_refused(found.problems):
        _measure(node, attempt, config, network, found)
    return _conclude(node, attempt, mode, found)


def _skipped(node: NodeContext, attempt: Attempt, record: Mapping[str, Any]) -> str | None:
    """Record that the checks were left out; missing GPUs still prevent the start."""
    if node.rank == 0:
        exchange.write_verdict(attempt, verdict.verdict_record(attempt.number, "off", node.hosts, [], {}, []))
    return node.allocation.missing_gpus(record) if node.allocation else None


def _own_facts(
    node: NodeContext,
    attempt: Attempt,
    record: Mapping[str, Any],
    mode: str,
    network: NodeNetwork,
) -> NodeFacts:
    config, environ = record["config"], bandwidth.rank_environment(network.variables)
    return collect_facts.collect(
        node.rank,
        host=node.hosts[node.rank],
        folders=[node.run.path, checkpoint_folder(node.run, config)],
        missing_gpus=node.allocation.missing_gpus(record) if node.allocation else None,
        wants_gpus=asks_for_gpus(config["resources"]["device"]),
        ranks=ranks_per_node(config),
        environ=environ,
        fabric=network.fabric,
        rate_folder=_rate_folder(node, attempt, mode),
        interface=network.interface,
        read_gpus=network.read_gpus,
        is_alone=not node.one_machine,
    )


def _rate_folder(node: NodeContext, attempt: Attempt, mode: str) -> Path | None:
    """The folder in which this node measures storage: in mode basic on node 0 alone; None without a
    scheduler, where short runs share one machine."""
    if mode == "full":
        return attempt.preflight_folder
    return attempt.path if node.rank == 0 and not node.one_machine else None


def space_needed(run: RunDir, config: Mapping[str, Any]) -> dict[str, int]:
    """Free bytes that the run needs, by folder: for its records, and for one more checkpoint."""
    folder = checkpoint_folder(run, config)
    needed = {str(run.path): checks.MIN_FREE_BYTES}
    newest = next(iter(checkpoint_steps(folder)), None)
    size = _size(folder / f"step-{newest:08d}") if newest is not None else 0
    return needed | {str(folder): checks.MIN_FREE_BYTES + size}


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _judge(node: NodeContext, attempt: Attempt, config: Mapping[str, Any], found: _Findings) -> None:
    """Wait for the facts of the other nodes, and judge all of them."""
    if len(node.hosts) > 1 and not node.one_machine:
        within_s = _facts_within_s(config)
        waiting = time.monotonic()
        seen = exchange.read_all_facts(attempt, len(node.hosts), within_s, node.allocation)
        found.waited_s = time.monotonic() - waiting
        found.facts = [each for each, _ in seen.values()]
        opened = datetime.fromisoformat(read_json(attempt.record)["started"]).timestamp()
        found.offsets = {
            each.host: checks.clock_offset(each.time, opened, at)
            for each, at in seen.values()
            if each.node > 0
        }
        folder = str(node.run.path)
        found.problems += checks.check_shared_folder(folder, node.hosts, seen, within_s)
    found.problems += verdict.problems_of_facts(
        found.facts,
        found.offsets,
        node.hosts,
        ranks=ranks_per_node(config),
        space_needed=space_needed(node.run, config),
    )
    if node.allocation is not None and not node.one_machine:
        entries = excluded_nodes.among(_runs_folder(node), _cluster_name(node), node.hosts)
        found.problems += checks.check_exclusions(entries)


def _runs_folder(node: NodeContext) -> Path:
    return node.run.path.parent.parent


def _cluster_name(node: NodeContext) -> str | None:
    return (journal.entry(node.run, node.submission).read("intent") or {}).get("cluster_name")


def _facts_within_s(config: Mapping[str, Any]) -> float:
    """Longest wait for the facts of other nodes, whose agents may start later."""
    return float(config["job"]["rendezvous_timeout_s"])


def _measure(
    node: NodeContext,
    attempt: Attempt,
    config: Mapping[str, Any],
    network: NodeNetwork,
    found: _Findings,
) -> None:
    """Measure the bandwidth together with the other nodes, on node 0. A failure is a warning."""
    with rendezvous.reserve_port() as port:
        endpoint = rendezvous.Endpoint(node.hosts[0], port.getsockname()[1])
        exchange.publish_endpoint(attempt, endpoint)
        problem = _run_ranks(node, attempt, config, network, endpoint)
    result = bandwidth.result(attempt)
    if problem is not None or result is None:
        remedy = "training may start all the same; --skip-preflight leaves the measurement out"
        message = problem or "the measurement wrote no result"
        found.problems.append(Problem("all_reduce", message, remedy, (), "warning"))
        return
    found.bandwidth, problems = verdict.judged_bandwidth(result, found.facts, node.hosts)
    found.problems += problems
    if found.bandwidth.get("run_bytes"):
        size = f"{found.bandwidth['run_bytes'] / 2**20:.1f} MiB"
        log_line(f"pre-flight: the messages of the run have {size} ({found.bandwidth['run_bytes_reason']})")
    if found.bandwidth.get("not_judged"):
        log_line(f"pre-flight: {found.bandwidth['not_judged']}")


def _run_ranks(
    node: NodeContext,
    attempt: Attempt,
    config: Mapping[str, Any],
    network: NodeNetwork,
    endpoint: rendezvous.Endpoint,
) -> str | None:
    env = bandwidth.rank_environment(network.variables)
    return bandwidth.measure(attempt, config, node.rank, len(node.hosts), endpoint, env, node.allocation)


def _follow(
    node: NodeContext, attempt: Attempt, config: Mapping[str, Any], network: NodeNetwork
) -> str | None:
    """Wait for the verdict on a node other than 0, and take part in the measurement if there is one."""
    within_s = _facts_within_s(config) + _VERDICT_MARGIN_S
    endpoint = exchange.wait_for_endpoint(attempt, within_s, node.allocation)
    if endpoint is not None:
        problem = _run_ranks(node, attempt, config, network, endpoint)
        if problem is not None:
            log_line(f"pre-flight: {problem}")
        within_s = bandwidth.WITHIN_S + _VERDICT_MARGIN_S
    found = exchange.wait_for_verdict(attempt, within_s, node.allocation)
    return _reason(found["message"])


def _conclude(node: NodeContext, attempt: Attempt, mode: str, found: _Findings) -> str | None:
    """Write the verdict, list nodes at fault, and log the problems, on node 0."""
    record = verdict.verdict_record(
        attempt.number,
        mode,
        node.hosts,
        found.facts,
        found.offsets,
        found.problems,
        bandwidth=found.bandwidth,
        seconds=time.monotonic() - found.began,
        waited_s=found.waited_s,
    )
    exchange.write_verdict(attempt, record)
    own = found.facts[0]
    if own.write_bytes_per_s is not None and own.read_bytes_per_s is not None:
        rates = (
            f"writes {own.write_bytes_per_s / 1e6:.0f} MB/s and reads {own.read_bytes_per_s / 1e6:.0f} MB/s"
        )
        log_line(f"pre-flight: node {own.host} {rates} in the run directory")
    for problem in found.problems:
        log_line(f"pre-flight: {problem.severity}: {problem.message}; {problem.remedy}")
    if record["at_fault"] and node.allocation is not None:
        _exclude(node, record["at_fault"], found.problems)
    return _reason(record["message"])


def _reason(message: str | None) -> str | None:
    return None if message is None else f"pre-flight: {message}"


def _exclude(node: NodeContext, hosts: Sequence[str], problems: Sequence[Problem]) -> None:
    """Put nodes at fault on the exclusion list of the runs folder, or log why that fails."""
    root, cluster = _runs_folder(node), _cluster_name(node)
    try:
        for host in hosts:
            reason = next(each.message for each in checks.errors(problems) if host in each.nodes)
            excluded_nodes.add(
                root,
                excluded_nodes.ExcludedNode.until(
                    host, reason, cluster=cluster, by=f"{node.run.sweep}/{node.run.name}"
                ),
            )
    except (OSError, ConfigError) as error:
        log_line(f"not put on the exclusion list: {', '.join(hosts)}: {message_of(error)}")
    else:
        log_line(f"excluded from later submissions to {root}: {', '.join(hosts)} (submit.py nodes)")
