"""Check all nodes of an attempt before its ranks start (docs/your-cluster.md). Standard library only.

Each node collects its facts. Node 0 judges them, writes `preflight.json`, and puts nodes at fault on the
exclusion list of the runs folder. In mode full, the ranks of all nodes measure their links together before:
one process of `disttrain.comm_bench.links` each, without torchrun, whose start would double the time.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from disttrain.errors import ConfigError, message_of
from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import Attempt, RunDir, checkpoint_steps
from disttrain.records.run_json import asks_for_gpus, ranks_per_node
from jobs.checks import node_checks, node_facts, rank_python
from jobs.checks.ceiling import judged_bandwidth
from jobs.checks.finding import Finding
from jobs.checks.gpu_health import has_driver
from jobs.checks.node_checks import errors, verdict_record
from jobs.checks.node_facts import NodeFacts
from jobs.checks.rank_python import RankPython
from jobs.core import child_process, environment, excluded_nodes, journal
from jobs.core.attempt import checkpoint_folder
from jobs.node import peers, rendezvous, start_processes
from jobs.node.allocation import NodeContext, log_line, poll_until
from jobs.node.node_environment import NodeNetwork

_VERDICT_MARGIN_S = 75.0
"""Time for the verdict of node 0 to reach the other nodes: NFS keeps a folder up to 60 s in its cache."""
_MEASURED_WITHIN_S = 55.0
"""Time for the measurement, with the start of its processes."""


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
    python: Sequence[str]

    @property
    def facts_within_s(self) -> float:
        """Longest wait for the facts of other nodes, whose agents may start later."""
        return float(self.config["job"]["rendezvous_timeout_s"])

    @property
    def port_file(self) -> Path:
        """Written by node 0 once the facts of all nodes are in order and the links are to be measured."""
        return self.attempt.preflight_folder / "port.json"

    @property
    def result_file(self) -> Path:
        """Written by rank 0 of the measurement."""
        return self.attempt.preflight_folder / "bandwidth.json"


def run_preflight(
    node: NodeContext,
    attempt: Attempt,
    record: Mapping[str, Any],
    network: NodeNetwork,
    variables: Mapping[str, environment.AddedVariable],
    python: RankPython | None = None,
) -> str | None:
    """Check the nodes; the reason, one line, why this attempt must not start.

    `record` is `run.json`, `variables` are those of the ranks, and `python` is theirs; None: the agent's.
    Raises `CannotStart` when node 0 is silent, `NodeFailed` when another node has failed, and `JobEnded`.
    """
    python = python or rank_python.find({}, os.environ, is_trainer=False)
    config, began = record["config"], time.monotonic()
    several = len(node.hosts) > 1 and not node.one_machine
    uses_nccl = asks_for_gpus(config["resources"]["device"]) and has_driver()
    mode = resolved_mode(
        config["job"].get("preflight", "auto"),
        several_machines=several,
        # several agents of one machine do not measure together
        gpus=ranks_per_node(config) if uses_nccl and (several or len(node.hosts) == 1) else 0,
    )
    missing_gpus = node.allocation.missing_gpus(record) if node.allocation else None
    if mode == "off":
        if node.rank == 0:
            peers.publish(attempt, attempt.preflight, verdict_record(attempt.number, "off", node.hosts))
        return missing_gpus or python.problem
    if node.rank > 0 and not several:
        return None  # node 0 has checked this machine
    if mode == "full" or several:
        attempt.preflight_folder.mkdir(exist_ok=True)
    if mode == "full" and not python.problem and python.missing:
        log_line(f"pre-flight: links are not measured: the Python of the ranks has no {python.missing}")
        mode = "basic"
    env = python.environment(os.environ, variables)
    own = node_facts.collect(
        node.rank,
        node.hosts[node.rank],
        config,
        network.fabric,
        environ=env,
        interface=network.interface,
        agreed=network.agreement,
        folders=[node.run.path, checkpoint_folder(node.run, config)],
        rate_folder=_rate_folder(node, attempt, mode),
        missing_gpus=missing_gpus,
        is_alone=not node.one_machine,
        python=python,
    )
    if several:
        peers.publish(attempt, attempt.preflight_facts(node.rank), dataclasses.asdict(own))
    start = _Start(node, attempt, config, mode, env, began, python.words)
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
    wait = functools.partial(peers.answer_of_node_0, start.attempt, start.node.allocation)
    verdict = start.attempt.preflight
    answer = wait(start.facts_within_s + _VERDICT_MARGIN_S, verdict, start.port_file)
    if "port" in answer:
        if (problem := _run_measurement(start, answer["port"])) is not None:
            log_line(f"pre-flight: {problem}")
        answer = wait(_MEASURED_WITHIN_S + _VERDICT_MARGIN_S, verdict)
    return answer


def _judge(start: _Start, own: NodeFacts, *, several: bool) -> dict[str, Any]:
    """Wait for the facts of the other nodes, judge all of them, and publish the verdict."""
    node, attempt = start.node, start.attempt
    seen, waiting, findings = {0: (own, own.time)}, time.monotonic(), []
    if several:
        within_s = start.facts_within_s
        gathered = peers.gather(attempt, node.allocation, within_s, len(node.hosts))
        seen = {rank: (NodeFacts(**facts), at) for rank, (facts, at) in gathered.items()}
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
    peers.publish(attempt, attempt.preflight, record)
    _log(own, findings, bandwidth or {})
    if record["at_fault"] and node.allocation is not None:
        _exclude(node, record["at_fault"], findings)
    return record


def _measured(start: _Start, facts: Sequence[NodeFacts]) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The bandwidth, measured together with the other nodes, on node 0. A failure is a warning."""
    with rendezvous.reserve_port() as reserved:
        port = reserved.getsockname()[1]
        peers.publish(start.attempt, start.port_file, {"port": port})
        problem = _run_measurement(start, port)
    result = read_json_or_none(start.result_file)
    if problem is None and result is not None:
        return judged_bandwidth(result, facts, start.node.hosts)
    remedy = "training may start all the same; --skip-preflight leaves the measurement out"
    return None, [Finding("warning", "all_reduce", problem or "the measurement wrote no result", remedy)]


def _run_measurement(start: _Start, port: int) -> str | None:
    """Run this node's ranks of the measurement; the reason, one line, if they failed. Raises `JobEnded`."""
    command = [*start.python, "-P", "-m", "disttrain.comm_bench.links", str(start.result_file)]
    command += ["--device", str(start.config["resources"]["device"])]
    bucket_mb = start.config.get("parallel", {}).get("ddp", {}).get("bucket_mb")
    command += [] if bucket_mb is None else ["--bucket-mb", str(bucket_mb)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        processes = [
            child_process.start(
                command, env={**start.env, **variables}, stdout=output, stderr=output, start_new_session=True
            )
            for variables in rank_variables(start.node, ranks_per_node(start.config), port)
        ]
        try:
            codes = poll_until(lambda: _ended(processes), _MEASURED_WITHIN_S, start.node.allocation)
        finally:
            child_process.end(processes)
        if codes is None:
            return f"the measurement did not end within {_MEASURED_WITHIN_S:g} s"
        if any(codes):
            return f"the measurement failed with exit code {max(codes, key=abs)}: {_last_line(output)}"
    return None


def rank_variables(node: NodeContext, ranks: int, port: int) -> list[dict[str, str]]:
    """torchrun's variables for each rank of this node."""
    return start_processes.variables(
        "rank",
        nnodes=len(node.hosts),
        nproc_per_node=ranks,
        node_rank=node.rank,
        master_addr=node.hosts[0],
        master_port=port,
    )


def _ended(processes: list[subprocess.Popen[bytes]]) -> list[int] | None:
    """Exit codes once all have ended, or one has failed."""
    codes = [process.poll() for process in processes]
    if any(codes):  # the others wait for the failed rank
        return [code or 0 for code in codes]
    return [0] * len(codes) if None not in codes else None


def _last_line(output: IO[str]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output if line.strip()]
    return lines[-1] if lines else "no output"


def _log(own: NodeFacts, findings: Sequence[Finding], bandwidth: Mapping[str, Any]) -> None:
    lines = [f"{finding.severity}: {finding.problem}; {finding.remedy}" for finding in findings]
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
        log_line(f"excluded from later submissions to {root}: {', '.join(hosts)} (disttrain nodes)")
