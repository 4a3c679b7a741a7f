"""Draft a site profile from the partitions, nodes and jobs of a cluster. Pure functions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from disttrain.errors import ConfigError
from jobs.fabric.description import Fabric, FabricKind
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config, Node, Partition, QueuedJob

_PLAIN = re.compile(r"[A-Za-z][\w.-]*")
_UNLOCK = 'ulimit -l unlimited || echo "only $(ulimit -l) KiB may be locked" >&2'
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"}


@dataclass(frozen=True)
class Line:
    """A line of the profile and its evidence; a key of None is a remark."""

    key: str | None
    value: str
    evidence: str


def profile_text(facts: ClusterFacts, fabric: Fabric) -> str:
    """YAML of a profile, with the evidence for each line. `fabric` is that of the submitting host.

    Raises `ConfigError` without a usable partition.
    """
    config = facts.config
    assert config is not None
    part, why = choose_partition(facts)
    nodes = [node for node in facts.nodes_of(part.name) if node.gpu_count] or facts.nodes_of(part.name)
    jobs = [job for job in facts.queue or () if job.partition == part.name and job.gpus_per_node]
    cluster = config.settings.get("clustername", "this cluster")
    gpu_lines, nodes_with_type = _gpus(config, nodes, jobs)
    lines = [
        Line("partition", word(part.name), why),
        *_account(facts, part),
        *gpu_lines,
        *_share(part, nodes_with_type, jobs),
        *_time(part),
        *_network(fabric),
        *_remarks(config),
    ]
    head = [
        f"# Drafted by `submit.py doctor --write-profile` from {cluster}, Slurm "
        f"{config.settings.get('slurm_version', '?')}. Check each line.",
        f"description: {json.dumps(f'{cluster}: partition {part.name}')}",
    ]
    return "\n".join([*head, *(text for line in lines for text in _written(line))]) + "\n"


def _written(line: Line) -> list[str]:
    remark = f"# {line.evidence}"
    return [remark] if line.key is None else [remark, f"{line.key}: {line.value}"]


def word(text: str) -> str:
    """A text as YAML: plain where YAML reads it as text, else in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)


def choose_partition(facts: ClusterFacts) -> tuple[Partition, str]:
    """The partition of this user's GPU jobs, else of most GPUs in use, else the default one; the evidence.

    Raises `ConfigError` if no partition is up, or if Slurm did not list partitions or nodes.
    """
    for name, listed in (("partitions", facts.partitions), ("nodes", facts.nodes)):
        if listed is None:
            raise ConfigError(f"no profile without {name}: {facts.refusals.get(name, 'no answer')}")
    accounts = _accounts(facts)
    used_by_own = {job.partition for job in facts.queue or () if job.user == facts.user}
    usable = {
        part.name: part
        for part in facts.partitions or ()
        if part.state == "UP"
        and (part.name in used_by_own or not accounts or any(map(part.allows, accounts)))
        and any(node.usable for node in facts.nodes_of(part.name))
    }
    if not usable:
        raise ConfigError("no partition of this cluster is up, has nodes and admits an account of this user")
    jobs = [job for job in facts.queue or () if job.partition in usable and job.gpus_per_node]
    own = [job for job in jobs if job.user == facts.user]
    for found, whose in ((own, f"of {facts.user}"), (jobs, "of all users")):
        if found:
            used: Counter[str] = Counter()
            for job in found:
                used[job.partition] += job.nodes * job.gpus_per_node
            name, gpus = used.most_common(1)[0]
            return usable[name], f"squeue: GPUs that running and pending jobs {whose} request here: {gpus}"
    sizes = {name: sum(node.gpu_count for node in facts.nodes_of(name)) for name in usable}
    default = next((part for part in usable.values() if part.is_default), None)
    largest = max(sizes, key=lambda name: sizes[name])
    if default is not None and (sizes[default.name] or not sizes[largest]):
        return default, "scontrol show partition: Default=YES"
    return usable[largest], f"sinfo: {sizes[largest]} GPUs, the most of all partitions"


def _accounts(facts: ClusterFacts) -> list[str]:
    """Accounts of the user, the default one first."""
    names = sorted({row.account for row in facts.associations or ()})
    return list(dict.fromkeys([*filter(None, [facts.default_account]), *names]))


def _account(facts: ClusterFacts, part: Partition) -> list[Line]:
    """The account of the user's jobs in the partition, else one that the partition admits."""
    own = [job for job in facts.queue or () if job.user == facts.user and job.account]
    here = [job for job in own if job.partition == part.name] or [
        job for job in own if part.allows(job.account)
    ]
    used = Counter(job.account for job in here if job.account)
    if used:
        return [
            Line("account", word(used.most_common(1)[0][0]), f"squeue: the account of {facts.user}'s jobs")
        ]
    names = sorted({row.account for row in facts.associations or ()})
    if facts.default_account is None or facts.user == "root" or not names:
        return []
    name = next(filter(part.allows, _accounts(facts)), facts.default_account)
    kind = "the default account" if name == facts.default_account else f"admitted by {part.name}, an account"
    others = f"; also: {', '.join(names)}" if len(names) > 1 else ""
    return [Line("account", word(name), f"sacctmgr: {kind} of {facts.user}{others}")]


def _gpus(
    config: Config, nodes: Sequence[Node], jobs: Sequence[QueuedJob]
) -> tuple[list[Line], Sequence[Node]]:
    """Lines on GPUs, and the nodes that have them."""
    if not any(node.gpu_count for node in nodes):
        return [Line("gpus", "none", "sinfo: no node has GPUs among its generic resources")], nodes
    select = config.text("SelectType") or "the default"
    style = "gpus-per-node" if select.endswith("cons_tres") else "gres"
    lines = [Line("gpus", style, f"scontrol show config: SelectType is {select}")]
    counts: Counter[str] = Counter()
    for node in nodes:
        for each in node.gpus:
            if each.name == "gpu" and each.type:
                counts[each.type] += each.count
    listed = ", ".join(f"{count} of {name}" for name, count in counts.most_common())
    if len(counts) == 1:
        lines.append(Line(None, "", f"sinfo: all GPUs are of type {listed.split(' of ')[1]}"))
    elif counts:
        asked = Counter(job.gpu_type for job in jobs if job.gpu_type in counts)
        name = (asked.most_common(1) or counts.most_common(1))[0][0] or ""
        source = "squeue: the type of most jobs" if asked else "sinfo: the most frequent type"
        lines.append(Line("gpu_type", word(name), f"{source}; GPUs: {listed}"))
        nodes = [node for node in nodes if any(each.type == name for each in node.gpus)]
    lines.append(Line("gpus_per_node", str(min(node.gpu_count for node in nodes)), "sinfo: GPUs of a node"))
    return lines, nodes


def _share(part: Partition, nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> list[Line]:
    """Whole nodes where the partition or the jobs of today use whole nodes."""
    if not nodes:
        return []
    cpus, memory = min(node.cpus for node in nodes), min(node.memory_mib for node in nodes)
    gpus = min(node.gpu_count for node in nodes)
    whole = [job for job in jobs if job.gpus_per_node >= gpus > 0]
    if part.is_exclusive:
        evidence = "scontrol show partition: OverSubscribe=EXCLUSIVE"
    elif jobs and 2 * len(whole) > len(jobs):
        evidence = f"squeue: {len(whole)} of {len(jobs)} GPU jobs use whole nodes"
    else:
        each = f", {cpus // gpus} processors and {memory // gpus} MiB for each of {gpus} GPUs" if gpus else ""
        text = (
            f"sinfo: a node has {cpus} processors and {memory} MiB{each}. Set `memory` to the share of a run"
        )
        return [Line(None, "", text)]
    return [
        Line("exclusive", "true", evidence),
        Line("cpus_per_task", str(cpus), "sinfo: processors of a node"),
        Line("memory", '"0"', f"all {memory} MiB of a node, which --exclusive does not grant"),
    ]


def _time(part: Partition) -> list[Line]:
    limit = part.max_minutes
    if limit is None:
        return []
    text = (
        f"scontrol show partition: MaxTime is {limit} min; job.time_limit_min of a config may be at most that"
    )
    return [Line(None, "", text)]


def _network(fabric: Fabric) -> list[Line]:
    """The network of this host. Each node detects its own, so that no variable is written."""
    adapters = fabric.compute_adapters
    rates = Counter(f"{each.rate_gbit_per_s:g} Gbit/s" for each in adapters if each.rate_gbit_per_s)
    shown = ", ".join(f"{count} adapters of {rate}" for rate, count in rates.items()) or "no RDMA adapters"
    text = f"network of this host: {fabric.kind}, {shown}; nodes may differ (submit.py fabric explain)"
    if fabric.kind not in (FabricKind.INFINIBAND, FabricKind.ROCE, FabricKind.EFA):
        return [Line(None, "", text)]
    return [Line("setup", json.dumps([_UNLOCK]), f"{text}. Adapters need locked memory")]


def _remarks(config: Config) -> list[Line]:
    """Options that the site may want, left out because nothing shows that it does."""
    found = []
    topology = config.text("TopologyPlugin") or ""
    if topology.endswith("/tree"):
        text = "TopologyPlugin is tree: `sbatch: {switches: 1@30}` waits 30 min for nodes of one switch"
        found.append(Line(None, "", text))
    if topology.endswith("/block"):
        found.append(
            Line(None, "", "TopologyPlugin is block: `sbatch: {segment: N}` keeps N nodes in a block")
        )
    default = config.text("MpiDefault")
    if default is not None:
        text = f"MpiDefault is {default}, which torchrun does not use: `srun: {{mpi: none}}`"
        found.append(Line(None, "", text))
    return found
