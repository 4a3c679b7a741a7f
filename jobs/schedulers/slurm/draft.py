"""Draft a site profile from the partitions, nodes and jobs of a cluster. Pure functions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from disttrain.errors import ConfigError
from jobs.fabric.description import Fabric, FabricKind
from jobs.schedulers.slurm.cluster_facts import ClusterFacts, Node, Partition, QueuedJob

_PLAIN = re.compile(r"[A-Za-z][\w.-]*")
_UNLOCK = 'ulimit -l unlimited || echo "only $(ulimit -l) KiB may be locked" >&2'
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"}
Line = tuple[str, str]
"""`key: value` of the profile, or empty, and its evidence."""


def profile_text(facts: ClusterFacts, fabric: Fabric) -> str:
    """YAML of a profile, with the evidence for each line. `fabric` is that of the submitting host.

    Raises `ConfigError` without a usable partition.
    """
    assert facts.config is not None
    settings = facts.config.values
    part, why = choose_partition(facts)
    nodes = [node for node in facts.nodes_of(part.name) if node.gpu_count] or facts.nodes_of(part.name)
    jobs = [job for job in facts.queue or () if job.partition == part.name and job.gpus_per_node]
    types = Counter(name for node in nodes for name in node.gpu_types)
    wanted = Counter(job.gpu_type for job in jobs if job.gpu_type in types) or types
    gpu_type = wanted.most_common(1)[0][0] if len(types) > 1 else None
    if gpu_type is not None:
        nodes = [node for node in nodes if gpu_type in node.gpu_types]
    limit = "" if part.max_minutes is None else f"; job.time_limit_min may be {part.max_minutes} at most"
    lines = [
        (f"partition: {word(part.name)}", why + limit),
        *_account(facts, part),
        *_gpus(facts, nodes, gpu_type, types),
        *_share(part, nodes, jobs),
        _network(fabric),
    ]
    cluster = settings.get("clustername", "this cluster")
    head = [
        f"# Drafted by `submit.py doctor --write-profile` from {cluster}, Slurm "
        f"{settings.get('slurm_version', '?')}. Check each line.",
        f"description: {json.dumps(f'{cluster}: partition {part.name}')}",
    ]
    written = [text for line, evidence in lines for text in (f"# {evidence}", line) if text]
    return "\n".join([*head, *written]) + "\n"


def word(text: str) -> str:
    """A text as YAML: plain where YAML reads it as text, else in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)


def choose_partition(facts: ClusterFacts) -> tuple[Partition, str]:
    """The partition in which this user's jobs request most GPUs, else all jobs, else the default or largest
    one with GPUs; and the evidence.

    Raises `ConfigError` if no partition is up, or if Slurm did not list partitions or nodes.
    """
    for name, listed in (("partitions", facts.partitions), ("nodes", facts.nodes)):
        if listed is None:
            raise ConfigError(f"no profile without {name}: {facts.refusals.get(name, 'no answer')}")
    jobs = facts.queue or ()
    own = [job for job in jobs if job.user == facts.user]
    usable = [
        part
        for part in facts.partitions or ()
        if part.state == "UP"
        and (
            not facts.accounts
            or any(map(part.allows, facts.accounts))
            or part.name in {job.partition for job in own}
        )
        and any(node.usable for node in facts.nodes_of(part.name))
    ]
    if not usable:
        raise ConfigError("no partition of this cluster is up, has nodes and admits an account of this user")

    def score(part: Partition) -> tuple[int, int, bool, bool, int]:
        size = sum(node.gpu_count for node in facts.nodes_of(part.name))
        return _requested(own, part), _requested(jobs, part), size > 0, part.is_default, size

    chosen = max(usable, key=score)
    by_own, by_all, _, _, size = score(chosen)
    requested = f"squeue: running and pending jobs request {by_all} GPUs here, those of {facts.user} {by_own}"
    return chosen, f"{requested}; sinfo: {size} GPUs{'; the default partition' * chosen.is_default}"


def _requested(jobs: Sequence[QueuedJob], part: Partition) -> int:
    """GPUs that these jobs request in a partition."""
    return sum(job.nodes * job.gpus_per_node for job in jobs if job.partition == part.name)


def _account(facts: ClusterFacts, part: Partition) -> Iterator[Line]:
    """The account of the user's jobs in the partition, else one that the partition admits."""
    jobs = [job for job in facts.queue or () if job.user == facts.user]
    names = [job.account for job in jobs if job.account and job.partition == part.name]
    names += [job.account for job in jobs if job.account and part.allows(job.account)]
    if facts.user != "root":
        names += [*filter(part.allows, facts.accounts), *facts.accounts]
    if names:
        yield f"account: {word(names[0])}", f"squeue, sacctmgr: of {', '.join(dict.fromkeys(names))}"


def _gpus(
    facts: ClusterFacts, nodes: Sequence[Node], gpu_type: str | None, types: Counter[str]
) -> Iterator[Line]:
    if not any(node.gpu_count for node in nodes):
        yield "gpus: none", "sinfo: no node has GPUs among its generic resources"
        return
    select = (facts.config and facts.config.text("SelectType")) or "the default"
    style = "gpus-per-node" if select.endswith("cons_tres") else "gres"
    yield f"gpus: {style}", f"scontrol show config: SelectType is {select}"
    listed = ", ".join(f"{count} of {name}" for name, count in types.most_common())
    if gpu_type is not None:
        yield (
            f"gpu_type: {word(gpu_type)}",
            f"the most frequent in squeue, else in sinfo; nodes: {listed}",
        )
    least = min(node.gpu_count for node in nodes)
    yield f"gpus_per_node: {least}", f"sinfo: GPUs of a node{f'; nodes: {listed}' if listed else ''}"


def _share(part: Partition, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> Iterator[Line]:
    """Whole nodes where the partition or the jobs of today use whole nodes."""
    cpus, memory = min(node.cpus for node in nodes), min(node.memory_mib for node in nodes)
    gpus = min(node.gpu_count for node in nodes)
    whole = [job for job in jobs if job.gpus_per_node >= gpus > 0]
    if not part.is_exclusive and 2 * len(whole) <= len(jobs):
        each = f", {cpus // gpus} processors and {memory // gpus} MiB for each of {gpus} GPUs" if gpus else ""
        yield "", f"sinfo: a node has {cpus} processors and {memory} MiB{each}. Set `memory` to a run's share"
        return
    evidence = f"OverSubscribe={part.sharing}; squeue: {len(whole)} of {len(jobs)} GPU jobs use whole nodes"
    yield "exclusive: true", evidence
    yield f"cpus_per_task: {cpus}", "sinfo: processors of a node"
    yield 'memory: "0"', f"all {memory} MiB of a node, which --exclusive does not grant"


def _network(fabric: Fabric) -> Line:
    """The network of this host. Each node detects its own, so that no variable is written."""
    rates = Counter(
        f"{each.rate_gbit_per_s:g} Gbit/s" for each in fabric.compute_adapters if each.rate_gbit_per_s
    )
    shown = ", ".join(f"{count} adapters of {rate}" for rate, count in rates.items()) or "no RDMA adapters"
    text = f"network of this host: {fabric.kind}, {shown}; nodes may differ (submit.py fabric explain)"
    if fabric.kind not in (FabricKind.INFINIBAND, FabricKind.ROCE, FabricKind.EFA):
        return "", text
    return f"setup: {json.dumps([_UNLOCK])}", f"{text}. Adapters need locked memory"
