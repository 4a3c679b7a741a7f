"""Findings on partitions, their nodes and GPUs, with the options of the site profile. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from disttrain.config.sections.job import JobConfig
from disttrain.errors import nearest
from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config, Node, Partition
from jobs.schedulers.slurm.site_profile import Profile

_MIG = re.compile(r"(?:.*_)?\d+g\.\d+gb.*")


def findings(
    facts: ClusterFacts, config: Config, profile: Profile, chosen: Sequence[Partition]
) -> Iterator[Finding]:
    """Findings on the partitions `chosen` by the profile."""
    yield from _choice(facts, profile, chosen)
    for part in chosen:
        yield from _state(facts, profile, part)
        yield from _sharing(config, profile, part)
        if facts.nodes is not None:
            yield from _gpus(facts, config, profile, part)


def chosen_partitions(partitions: Sequence[Partition], profile: Profile) -> list[Partition]:
    """The partitions of the profile, else the default partition; those that exist."""
    if profile.partition is None:
        return [part for part in partitions if part.is_default]
    names = profile.partition.split(",")
    return [part for part in partitions if part.name in names]


def _choice(facts: ClusterFacts, profile: Profile, chosen: Sequence[Partition]) -> Iterator[Finding]:
    if facts.partitions is None:
        return
    known = [part.name for part in facts.partitions]
    listed = f"partitions: {', '.join(known) or 'none'}"
    if profile.partition is None and not chosen:
        yield Finding(
            "error",
            "partitions.none_chosen",
            "the cluster has no default partition, and the site profile names none: sbatch refuses every job",
            "set `partition` in the site profile, or give `--slurm partition=NAME`",
            listed,
        )
    for name in (profile.partition or "").split(","):
        if name and name not in known:
            yield Finding(
                "error",
                "partitions.unknown",
                f"partition {name!r} of the site profile does not exist{nearest(name, known)}",
                f"set `partition` to one of {', '.join(known)}",
                listed,
            )


def _state(facts: ClusterFacts, profile: Profile, part: Partition) -> Iterator[Finding]:
    if part.state != "UP":
        yield Finding(
            "error",
            "partitions.state",
            f"partition {part.name} starts no jobs",
            "name another partition, or wait for the end of a maintenance (`scontrol show reservation`)",
            f"State={part.state}",
        )
    limit_min, wanted_min = part.max_minutes, JobConfig().time_limit_min
    if limit_min is not None and limit_min < wanted_min:
        yield Finding(
            "warning",
            "partitions.max_time",
            f"jobs in partition {part.name} end after {limit_min} min, and the default of job.time_limit_min "
            f"is {wanted_min:g}: Slurm refuses such a job or leaves it pending",
            f"train with --set job.time_limit_min={limit_min}; runs continue from checkpoints after a "
            "requeue",
            f"MaxTime={part.settings.get('maxtime')}",
        )
    account = profile.account or facts.default_account
    if part.denies(account):
        yield Finding(
            "error",
            "partitions.account",
            f"partition {part.name} does not admit account {account}",
            "set `account` or `partition` of the site profile",
            f"DenyAccounts={part.settings.get('denyaccounts')}",
        )
    elif not part.allows(account):
        yield Finding(
            "warning",
            "partitions.account",
            f"AllowAccounts of partition {part.name} does not list account {account}: Slurm refuses its "
            "jobs, unless a parent account is listed and this release admits subaccounts",
            "`submit.py sweep --dry-run --test-only` shows which; else set `account` or `partition` of the "
            "site profile",
            f"AllowAccounts={part.settings.get('allowaccounts')}",
        )
    nodes = facts.nodes_of(part.name)
    lost = [node.name for node in nodes if not node.usable]
    if nodes and len(lost) == len(nodes):
        yield Finding(
            "error",
            "partitions.no_nodes",
            f"no node of partition {part.name} can run a job",
            "`sinfo -R` lists the reasons",
            f"all {len(nodes)} nodes are down or drained",
        )
    elif lost:
        yield Finding(
            "note",
            "partitions.lost_nodes",
            f"{len(lost)} of {len(nodes)} nodes of partition {part.name} run no jobs",
            "`sinfo -R` lists the reasons",
            ", ".join(lost[:4]) + (", ..." if len(lost) > 4 else ""),
        )


def _sharing(config: Config, profile: Profile, part: Partition) -> Iterator[Finding]:
    over = part.settings.get("oversubscribe", "NO").upper()
    if over.startswith("FORCE") and over != "FORCE:1":
        yield Finding(
            "warning",
            "partitions.oversubscribe",
            f"several jobs run on the same processors in partition {part.name}: timings depend on the others",
            "for measurements name another partition: `--slurm partition=NAME`",
            f"OverSubscribe={over}",
        )
    elif not (profile.exclusive or part.is_exclusive):
        yield Finding(
            "note",
            "partitions.shared_nodes",
            f"other jobs may share the nodes of partition {part.name}: memory bandwidth, links and loader "
            "processes then disturb timings",
            "set `exclusive: true` and `memory: 0` in the site profile for measurements",
            f"OverSubscribe={over}",
        )
    per_cpu = part.text("DefMemPerCPU") or config.text("DefMemPerCPU")
    if profile.memory is None and per_cpu is not None and per_cpu.isdigit():
        yield Finding(
            "note",
            "partitions.memory",
            f"a job without a memory request has {per_cpu} MiB for each processor, which is little for GPUs "
            "with few processors each",
            "set `memory` in the site profile: to 0 (all of a node) with `exclusive: true`, else to a size "
            "such as 64G",
            f"DefMemPerCPU={per_cpu}",
        )


def _gpus(facts: ClusterFacts, config: Config, profile: Profile, part: Partition) -> Iterator[Finding]:
    nodes = facts.nodes_of(part.name)
    types = sorted({each.type for node in nodes for each in node.gpus if each.name == "gpu" and each.type})
    shown = _shown(nodes)
    if not any(node.gpu_count for node in nodes):
        if profile.gpus != "none":
            yield _no_gpus(facts, part, shown)
        return
    if profile.gpu_type is not None and profile.gpu_type not in types:
        listed = f"; there are: {', '.join(types)}" if types else "; its GPUs have no type"
        yield Finding(
            "error",
            "gpus.type",
            f"partition {part.name} has no GPU of type "
            f"{profile.gpu_type!r}{nearest(profile.gpu_type, types)}",
            f"set `gpu_type` of the site profile, or leave it out{listed}",
            shown,
        )
    elif profile.gpu_type is None and len(types) > 1:
        yield Finding(
            "warning",
            "gpus.mixed",
            f"partition {part.name} has GPUs of several types, and a job may get any: runs are not "
            "comparable",
            f"set `gpu_type` in the site profile to one of {', '.join(types)}",
            shown,
        )
    sliced = [name for name in types if _MIG.fullmatch(name)]
    if sliced and profile.gpu_type in (None, *sliced):
        yield Finding(
            "warning",
            "gpus.mig",
            "some GPUs are MIG slices: NCCL connects no two slices of one GPU, and their speed is a fraction",
            "set `gpu_type` to a whole GPU, or run one rank on each node",
            f"types: {', '.join(sliced)}",
        )
    select = (config.text("SelectType") or "").removeprefix("select/")
    if select in ("linear", "cons_res") and profile.gpus == "gpus-per-node":
        yield Finding(
            "warning",
            "gpus.option",
            f"--gpus-per-node needs select/cons_tres, and this cluster has select/{select}",
            "set `gpus: gres` in the site profile",
            config.evidence("SelectType"),
        )


def _no_gpus(facts: ClusterFacts, part: Partition, shown: str) -> Finding:
    others = sorted({node.partition for node in facts.nodes or () if node.gpu_count})
    fix = f"set `partition` to one of {', '.join(others)}" if others else "set `gpus: none`"
    return Finding(
        "warning",
        "gpus.none",
        f"partition {part.name} has no GPUs among its generic resources: Slurm refuses a run whose "
        "resources.device is auto or cuda",
        f"{fix} in the site profile, or train with --set resources.device=cpu",
        shown,
    )


def _shown(nodes: Sequence[Node]) -> str:
    """Generic resources of the nodes: `gpu:h100:8 on 4 nodes`."""
    kinds: dict[str, int] = {}
    for node in nodes:
        words = [":".join(filter(None, [each.name, each.type, str(each.count)])) for each in node.gpus]
        kinds[",".join(words) or "no GPU"] = kinds.get(",".join(words) or "no GPU", 0) + 1
    return "; ".join(f"{words} on {count} nodes" for words, count in kinds.items()) or "no nodes"
