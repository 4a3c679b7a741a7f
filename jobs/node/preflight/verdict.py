"""The verdict of the pre-flight, and its record `preflight.json`. Pure functions, standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jobs.node.preflight import ceiling, checks
from jobs.node.preflight.checks import ClockOffset, NodeFacts, Problem
from jobs.node.preflight.link_rates import GpuPath


def problems_of_facts(
    facts: Sequence[NodeFacts],
    offsets: Mapping[str, ClockOffset],
    hosts: Sequence[str],
    *,
    ranks: int,
    space_needed: Mapping[str, int],
) -> list[Problem]:
    """Problems by the facts of all nodes, by rank. `offsets` are those of the clocks, by host."""
    found = [
        *checks.check_gpus(facts, ranks),
        *checks.check_free_space(facts, space_needed),
        *checks.check_processors(facts, ranks),
        *checks.check_affinity(facts),
    ]
    if len(facts) > 1:
        found += checks.check_agreement(facts)
        found += checks.check_clocks(hosts[0], offsets)
        found += checks.check_memory_lock(facts)
        found += checks.check_defects(facts)
    return found + checks.check_storage_rates(facts)


def judged_bandwidth(
    result: Mapping[str, Any], facts: Sequence[NodeFacts], hosts: Sequence[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """`records.PreflightBandwidth` of a measurement, and its problems."""
    rates = {(each["source"], each["target"]): float(each["bytes_per_s"]) for each in result["links"]}
    known = [each.link_bytes_per_s for each in facts if each.link_bytes_per_s is not None]
    link = min(known) if len(known) == len(facts) else None
    path = _gpu_path(facts) if len(hosts) == 1 else None
    if len(hosts) == 1:
        link, limits = None, ceiling.ceiling_in_node(path, result["ranks"], result["backend"])
    else:
        limits = ceiling.ceiling(len(hosts), link, result["backend"], tcp=any(each.tcp for each in facts))
    problems = ceiling.link_problems(rates, hosts)
    slowest = ceiling.slowest_pair(rates, hosts)
    for each in result["all_reduce"]:
        problems += ceiling.all_reduce_problems(limits, each["bytes"], each["bus_bytes_per_s"], slowest)
    record = {
        **result,
        "node_link_bytes_per_s": link,
        "gpu_path": path.kind if path else None,
        "gpu_link_bytes_per_s": path.bytes_per_s if path else None,
        "ceiling_bytes_per_s": limits.most if limits else None,
        "floor_bytes_per_s": limits.warn_below if limits else None,
        "not_judged": ceiling.not_judged(
            limits, len(hosts), [each["bytes"] for each in result["all_reduce"]]
        ),
    }
    return record, problems


def _gpu_path(facts: Sequence[NodeFacts]) -> GpuPath | None:
    found = facts[0].gpu_path
    return GpuPath(**found) if found else None


def verdict_record(
    attempt: int,
    mode: str,
    hosts: Sequence[str],
    facts: Sequence[NodeFacts],
    offsets: Mapping[str, ClockOffset],
    problems: Sequence[Problem],
    *,
    bandwidth: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    waited_s: float = 0.0,
) -> dict[str, Any]:
    """Content of `preflight.json` (`records.Preflight`)."""
    refused = checks.is_refused(problems)
    verdict = "refused" if refused else "warned" if problems else "passed"
    return {
        "schema_version": 1,
        "attempt": attempt,
        "mode": mode,
        "verdict": "skipped" if mode == "off" else verdict,
        "message": checks.refusal(problems) if refused else None,
        "at_fault": list(checks.nodes_at_fault(problems, hosts)),
        "problems": [checks.as_record(each) for each in problems],
        "nodes": [_node(each, offsets.get(each.host)) for each in facts],
        "bandwidth": None if bandwidth is None else dict(bandwidth),
        "seconds": seconds,
        "waited_s": waited_s,
    }


def _node(facts: NodeFacts, offset: ClockOffset | None) -> dict[str, Any]:
    """`records.PreflightNode`."""
    return {
        "host": facts.host,
        "agreement": dict(facts.agreement),
        "agreement_hash": facts.agreement_hash,
        "gpus": facts.gpus,
        "processors": facts.processors,
        "memory_lock_bytes": facts.memory_lock_bytes,
        "free_bytes": dict(facts.free_bytes),
        "clock_offset_s": list(asdict(offset).values()) if offset else None,
        "write_bytes_per_s": facts.write_bytes_per_s,
        "read_bytes_per_s": facts.read_bytes_per_s,
        "seconds": facts.seconds,
    }
