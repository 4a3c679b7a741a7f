"""The verdict of the pre-flight, and its record `preflight.json`. Pure functions, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jobs.checks.finding import Finding
from jobs.checks.node_facts import NodeFacts


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
