"""Checks of the facts that the nodes of a job wrote, and the record `preflight.json`. Pure.

A finding names the hosts at fault where the facts single them out. Of values that differ, those of a majority
count as right; without a majority no host is at fault.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from disttrain.records.process_limits import list_text
from jobs.checks.finding import Check, Finding, Severity, examine
from jobs.checks.node_facts import NodeFacts
from jobs.core.excluded_nodes import ExcludedNode

CLOCK_LIMIT_S = 5.0
"""Difference between the clocks of two nodes that ends the start. Order and durations between nodes in
records and reports, and the time limit, follow these clocks."""
MIN_FREE_BYTES = 64 * 2**20
"""Free space that logs and records of a run need."""
_MIN_LOCKED_BYTES = 64 * 2**20
"""RDMA registers its buffers in locked memory. The usual default of 8 MiB or less is too little."""
_SLOW_STORAGE = 0.25
"""A node whose storage is slower than this fraction of the median of all nodes gets a warning."""
_MIN_STORAGE_BYTES_PER_S = 10e6
_MUST_AGREE = ("code", "machine", "torch", "NCCL")
"""Ranks with different values fail or compute other numbers. Other differences are warnings."""
_NONE = "none"
_REPORT = "resubmit without the node, and report it to the administrators"
_OTHER_PYTHON = "job.python names the environment of the ranks"
_LOCKED = "locked memory is limited to {evidence}, and RDMA needs it"
_UNLOCK = "have the scheduler's daemon started with LimitMEMLOCK=infinity and not propagate MEMLOCK"


def _locked(facts: NodeFacts, *, enough: bool) -> str:
    limit = facts.memory_lock_bytes if facts.rdma else None
    return mib(limit) if limit is not None and (limit >= _MIN_LOCKED_BYTES) == enough else ""


NODE: tuple[Check[NodeFacts], ...] = (
    Check("gpus", "error", lambda facts: facts.missing_gpus, "{evidence}", _REPORT),
    Check("python", "error", lambda facts: facts.python_problem, "{evidence}", _OTHER_PYTHON),
    Check(
        "processors",
        "warning",
        lambda facts: (
            f"{facts.processors} processors for {facts.ranks} ranks" if facts.processors < facts.ranks else ""
        ),
        "{evidence}",
        "request more: cpus_per_task of the site profile",
    ),
    Check(
        "affinity",
        "warning",
        lambda facts: list_text(facts.far_from_gpus),
        "the job has no processor near the GPU of local ranks {evidence}",
        "set `sbatch: {gres-flags: enforce-binding}` in the site profile, or request whole nodes",
    ),
)
BETWEEN_NODES: tuple[Check[NodeFacts], ...] = (
    Check("memory_lock", "error", lambda facts: _locked(facts, enough=False), _LOCKED, _UNLOCK),
    Check("memory_lock", "warning", lambda facts: _locked(facts, enough=True), _LOCKED, _UNLOCK),
)
"""Rows that hold for jobs of several nodes alone."""


def clock_offset(written: float, opened: float, seen: float) -> tuple[float, float]:
    """Bounds of a node's clock less that of node 0, in seconds, from the order of three events.

    Node 0 opened the attempt at `opened`. The node then read that and wrote its facts at `written` by its own
    clock. Node 0 saw the facts at `seen`. The node wrote between the two times of node 0.
    """
    return written - seen, written - opened


def _least_offset(bounds: tuple[float, float]) -> float:
    """The least possible offset if it exceeds `CLOCK_LIMIT_S` for certain, else 0."""
    low_s, high_s = bounds
    return low_s if low_s > CLOCK_LIMIT_S else high_s if high_s < -CLOCK_LIMIT_S else 0.0


def findings_of_facts(
    facts: Sequence[NodeFacts],
    offsets: Mapping[str, tuple[float, float]],
    hosts: Sequence[str],
    space_needed: Mapping[str, int],
) -> list[Finding]:
    """Findings by the facts of all nodes, by rank. `offsets` are those of the clocks, by host."""
    several = len(facts) > 1
    findings = [*check_nodes(facts), *check_free_space(facts, space_needed), *check_storage_rates(facts)]
    return [*findings, *check_agreement(facts), *check_clocks(hosts[0], offsets)] if several else findings


def check_nodes(facts: Sequence[NodeFacts]) -> list[Finding]:
    """Findings on each node by itself, equal ones once with all their hosts."""
    rows = (*NODE, *BETWEEN_NODES) if len(facts) > 1 else NODE
    most = min(facts[0].ranks, max(each.gpus or 0 for each in facts))
    hosts: dict[Finding, list[str]] = {}
    for each in facts:
        findings = [replace(finding, evidence="") for finding in examine(rows, each)]
        if not each.missing_gpus and each.gpus is not None and each.gpus < most:
            problem = f"{each.gpus or 'no'} usable GPUs, and the run uses {most} on each node"
            findings.append(Finding("error", "gpus", problem, _REPORT))
        findings += [
            Finding(gpu["severity"], "gpu_health", gpu["message"], gpu["remedy"]) for gpu in each.gpu_problems
        ]
        remedy = "training may be slow; `disttrain fabric explain` on a node shows its network"
        defects = each.defects if len(facts) > 1 else ()
        findings += [Finding("warning", "defects", defect, remedy) for defect in defects]
        for finding in findings:
            hosts.setdefault(finding, []).append(each.host)

    def is_common(finding: Finding, on: Sequence[str]) -> bool:
        """Whether the cause is in the config, not on the nodes."""
        return finding.key == "python" and len(on) == len(facts)

    return [
        replace(
            finding,
            problem=f"{_named(on)}: {finding.problem}",
            hosts=() if finding.severity != "error" or is_common(finding, on) else tuple(on),
        )
        for finding, on in hosts.items()
    ]


def check_agreement(facts: Sequence[NodeFacts]) -> list[Finding]:
    """Values that differ between nodes, in one finding for each set of nodes that differs and severity.

    A value that could not be read on some node is no proof of a difference: a warning.
    """
    differing: dict[tuple[tuple[str, ...], Severity], list[str]] = {}
    for name in sorted({name for each in facts for name in each.agreement}):
        values = {each.host: each.agreement.get(name, _NONE) for each in facts}
        if len(set(values.values())) > 1:
            odd, text = _difference(name, values)
            is_error = name in _MUST_AGREE and _NONE not in values.values()
            differing.setdefault((odd, "error" if is_error else "warning"), []).append(text)
    remedy = "choose nodes of one kind (site profile: constraint), or have these made equal"
    findings = []
    for (odd, severity), texts in sorted(differing.items()):
        where = f"{_named(odd)}: " if odd else ""
        more = f", and {len(texts) - 3} more values" if len(texts) > 3 else ""
        problem = f"{where}{'; '.join(texts[:3])}{more}"
        findings.append(Finding(severity, "agreement", problem, remedy, hosts=odd))
    return findings


def _difference(name: str, values: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Hosts without the value of the majority, and the difference in words."""
    usual, count = Counter(values.values()).most_common(1)[0]
    if 2 * count > len(values):
        odd = tuple(host for host, value in values.items() if value != usual)
        own = "/".join(sorted({values[host] for host in odd}))
        return odd, f"{name} is {own}, and {usual} on {count} other node{'s' * (count > 1)}"
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        groups.setdefault(value, []).append(host)
    return (), f"{name} is " + " and ".join(f"{value} on {_hosts(on)}" for value, on in groups.items())


def check_clocks(host0: str, offsets: Mapping[str, tuple[float, float]]) -> Iterator[Finding]:
    """Nodes whose clock differs from that of node 0; node 0 itself if most others differ from it."""
    wrong = {host: by_s for host, bounds in offsets.items() if (by_s := _least_offset(bounds))}
    remedy = "start the time service (chronyd, ntpd) on the node, or --skip-preflight"
    most_differ = len(offsets) == 1 or 2 * len(wrong) > len(offsets)
    for host, by_s in sorted(wrong.items(), key=lambda item: -abs(item[1])):
        offset = f"at least {abs(by_s):.0f} s {'ahead of' if by_s > 0 else 'behind'}"
        problem = f"clocks differ: node {host} is {offset} node {host0}"
        at_fault = (host,) if not most_differ else (host0,) if len(offsets) > 1 else ()
        yield Finding("error", "clock", problem, remedy, hosts=at_fault)
        if most_differ:
            return


def check_free_space(facts: Sequence[NodeFacts], needed: Mapping[str, int]) -> Iterator[Finding]:
    """Folders with less free space than `needed`, in bytes by folder."""
    for folder, least in needed.items():
        free = {each.host: each.free_bytes[folder] for each in facts if folder in each.free_bytes}
        little = [host for host, count in free.items() if count < least]
        if little:
            at_fault = tuple(little) if len(little) < len(free) else ()
            where = f"{_named(little)}: " if at_fault else ""
            count = mib(min(free[host] for host in little))
            problem = f"{where}{folder} has {count} free, and the run needs {mib(least)}"
            remedy = "delete old runs (disttrain clean, then clean --purge), or choose another folder"
            yield Finding("error", "free_space", problem, remedy, hosts=at_fault)


def check_shared_folder(
    folder: str, hosts: Sequence[str], present: Iterable[int], within_s: float
) -> list[Finding]:
    """Nodes whose facts node 0 did not find in the run directory.

    They are at fault if at least half of the other nodes share the folder; else the folder or node 0 is.
    """
    seen = set(present)
    silent = tuple(host for node, host in enumerate(hosts) if node not in seen)
    if not silent:
        return []
    problem = f"{_named(silent)} wrote nothing that node {hosts[0]} can see to {folder} within {within_s:g} s"
    remedy = "mount the shared file system there, or choose --runs on one that all nodes share"
    is_common = 2 * len(silent) > len(hosts) - 1
    return [Finding("error", "shared_folder", problem, remedy, hosts=() if is_common else silent)]


def check_exclusions(entries: Iterable[ExcludedNode]) -> list[Finding]:
    """Warnings for nodes of the job that are on the exclusion list.

    A job has such nodes if it was submitted before the entry or by hand, or if too few other nodes are left.
    """
    return [
        Finding(
            "warning",
            "excluded",
            f"node {each.host} is on the exclusion list ({each.by}: {each.reason})",
            f"resubmit without it (sbatch --exclude={each.host}), or disttrain nodes --clear {each.host}",
            hosts=(each.host,),
        )
        for each in entries
    ]


def check_storage_rates(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Warnings for nodes with slow storage."""
    remedy = "look at the mount and the network of the node; checkpoints will be slow"
    for verb, name in (("writes", "write_bytes_per_s"), ("reads", "read_bytes_per_s")):
        rates = {each.host: rate for each in facts if (rate := getattr(each, name)) is not None}
        usual = statistics.median(rates.values()) if rates else 0.0
        least = max(_MIN_STORAGE_BYTES_PER_S, _SLOW_STORAGE * usual if len(rates) > 2 else 0.0)
        for host, rate in rates.items():
            if rate < least:
                problem = (
                    f"node {host} {verb} {rate / 1e6:.1f} MB/s in the run directory, less than "
                    f"{least / 1e6:g} MB/s (the median is {usual / 1e6:.1f} MB/s)"
                )
                yield Finding("warning", "storage_rate", problem, remedy, hosts=(host,))


def _named(hosts: Sequence[str]) -> str:
    return f"node{'s' * (len(hosts) > 1)} {_hosts(hosts)}"


def _hosts(hosts: Sequence[str]) -> str:
    listed = ", ".join(hosts[:8])
    return f"{listed} and {len(hosts) - 8} more" if len(hosts) > 8 else listed


def mib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that end the start."""
    return [finding for finding in findings if finding.severity == "error"]


def refusal(findings: Iterable[Finding]) -> str | None:
    """The first error and its remedy, in one line; None without an error."""
    refusing = errors(findings)
    if not refusing:
        return None
    more = f" (and {len(refusing) - 1} more in preflight.json)" if len(refusing) > 1 else ""
    return f"{refusing[0].problem}; {refusing[0].remedy}{more}"


def hosts_at_fault(findings: Iterable[Finding], hosts: Sequence[str]) -> list[str]:
    """Hosts that errors single out, in rank order. None are at fault where they are all of several nodes: the
    reason is then common to them."""
    blamed = {host for finding in errors(findings) for host in finding.hosts}
    is_common = len(blamed) == len(set(hosts)) > 1
    return [] if is_common else [host for host in dict.fromkeys(hosts) if host in blamed]


def verdict_record(
    attempt: int,
    mode: str,
    hosts: Sequence[str],
    facts: Sequence[NodeFacts] = (),
    offsets: Mapping[str, tuple[float, float]] = {},
    findings: Sequence[Finding] = (),
    bandwidth: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    waited_s: float = 0.0,
) -> dict[str, Any]:
    """Content of `preflight.json` (`records.Preflight`)."""
    message = refusal(findings)
    verdict = "refused" if message else "warned" if findings else "passed"
    return {
        "schema_version": 1,
        "attempt": attempt,
        "mode": mode,
        "verdict": "skipped" if mode == "off" else verdict,
        "message": message,
        "at_fault": hosts_at_fault(findings, hosts),
        "problems": [
            {
                "check": finding.key,
                "severity": finding.severity,
                "message": finding.problem,
                "remedy": finding.remedy,
                "nodes": list(finding.hosts),
            }
            for finding in findings
        ],
        "nodes": [_node(each, offsets.get(each.host)) for each in facts],
        "bandwidth": bandwidth,
        "seconds": seconds,
        "waited_s": waited_s,
    }


def _node(facts: NodeFacts, offset: tuple[float, float] | None) -> dict[str, Any]:
    """`records.PreflightNode`."""
    names = (
        "host", "agreement", "agreement_hash", "gpus", "processors", "memory_lock_bytes", "free_bytes",
        "write_bytes_per_s", "read_bytes_per_s", "seconds",
    )  # fmt: skip
    about = {name: getattr(facts, name) for name in names}
    return {**about, "clock_offset_s": list(offset) if offset else None}
