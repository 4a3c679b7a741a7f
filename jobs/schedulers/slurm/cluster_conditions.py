"""Jobs with the options of a site profile on a cluster, and conditions of the rows about them. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from disttrain.config.sections.job import JobConfig
from jobs.checks.host_facts import HostFacts
from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE
from jobs.fabric.description import ENOUGH_LOCKED_BYTES
from jobs.schedulers.slurm.cluster_facts import ClusterFacts, Config, Node, Partition
from jobs.schedulers.slurm.profile import Profile

_OWN_CODES = {0, 1, 69, 75, EXIT_DO_NOT_REQUEUE}
"""Exit codes of a job's step (docs/requeue.md)."""
_MIG = re.compile(r"(?:.*_)?\d+g\.\d+gb.*")


@dataclass(frozen=True)
class Jobs:
    """Jobs with the options of `profile` on a cluster that answered."""

    facts: ClusterFacts
    config: Config
    profile: Profile
    host: HostFacts | None
    """The submitting host; None where its probe failed."""

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the profile, else the default partition; those that exist."""
        names = self.profile.partition.split(",") if self.profile.partition else None
        return [
            part
            for part in self.facts.partitions or ()
            if (part.is_default if names is None else part.name in names)
        ]

    @property
    def nodes(self) -> list[Node]:
        names = [part.name for part in self.partitions]
        return self.facts.nodes_of(*names) if names else []

    @property
    def gpu_types(self) -> list[str]:
        return sorted({name for node in self.nodes for name in node.gpu_types})

    @property
    def share_nodes(self) -> bool:
        whole = bool(self.partitions) and all(part.is_exclusive for part in self.partitions)
        return not (self.profile.exclusive or whole)

    @property
    def task_plugins(self) -> set[str]:
        return {name.removeprefix("task/") for name in self.config.flags("TaskPlugin")}

    def confines(self, setting: str) -> bool:
        """Whether control groups confine a job by this setting."""
        return "cgroup" in self.task_plugins and self.config.is_yes(setting)


def setting(*names: str, holds: Callable[[Jobs], object]) -> Callable[[Jobs], str]:
    """The settings as evidence, if `holds`."""
    return lambda jobs: jobs.config.evidence(*names) if holds(jobs) else ""


def between(
    name: str, least: int, below: int, holds: Callable[[Jobs], bool] = lambda jobs: True
) -> Callable[[Jobs], str]:
    """A setting as evidence, if it is a number in this range, and `holds`."""
    return setting(name, holds=lambda jobs: jobs.config.number(name) in range(least, below) and holds(jobs))


def of_partitions(text: Callable[[Jobs, Partition], str]) -> Callable[[Jobs], str]:
    """The text of each partition as evidence, with its name."""
    return lambda jobs: ", ".join(
        f"{part.name}: {shown}" for part in jobs.partitions if (shown := text(jobs, part))
    )


def tracks_by(kind: str) -> Callable[[Jobs], str]:
    return setting(
        "ProctrackType", holds=lambda jobs: jobs.config.text("ProctrackType") == f"proctrack/{kind}"
    )


def differs(name: str, *usual: str) -> Callable[[Jobs], str]:
    """A setting as evidence, if it is set and ends with none of `usual`."""
    return setting(name, holds=lambda jobs: not (jobs.config.text(name) or "none").endswith(("none", *usual)))


def preempt_mode(jobs: Jobs, part: Partition) -> str:
    kind = jobs.config.text("PreemptType") or "none"
    default = jobs.config.values.get("preemptmode", "OFF")
    return (
        "OFF" if kind.endswith("/none") or kind == "none" else (part.text("PreemptMode") or default).upper()
    )


def no_grace(jobs: Jobs, part: Partition) -> str:
    """The grace time of a QOS is in accounting."""
    mode, by_qos = preempt_mode(jobs, part), (jobs.config.text("PreemptType") or "").endswith("/qos")
    abrupt = mode != "OFF" and "SUSPEND" not in mode and not by_qos and not part.number("GraceTime")
    return f"PreemptMode={mode}, GraceTime=0" if abrupt else ""


def cancels(jobs: Jobs, part: Partition) -> str:
    return f"PreemptMode={mode}" if "CANCEL" in (mode := preempt_mode(jobs, part)) else ""


def exit_codes(jobs: Jobs) -> str:
    names = [
        name
        for name in ("RequeueExit", "RequeueExitHold")
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", jobs.config.text(name) or "")
        if _OWN_CODES & {*range(int(first), int(last or first) + 1)}
    ]
    return jobs.config.evidence(*names)


def full_queue(jobs: Jobs) -> str:
    most, queued = jobs.config.number("MaxJobCount"), len(jobs.facts.queue or ())
    return f"{queued} jobs, MaxJobCount = {most}" if most and queued > 0.9 * most else ""


def short_limit(jobs: Jobs, part: Partition) -> str:
    default_min = JobConfig().time_limit_min
    is_short = part.max_minutes is not None and part.max_minutes < default_min
    return f"MaxTime={part.text('MaxTime')}, and the default is {default_min:g} min" if is_short else ""


def lost_nodes(jobs: Jobs) -> str:
    lost = [node.name for node in jobs.nodes if not node.usable]
    return (
        f"{len(lost)} of {len(jobs.nodes)}: {', '.join(lost[:4])}{', ...' * (len(lost) > 4)}" if lost else ""
    )


def memory_for_processors(jobs: Jobs, part: Partition) -> str:
    per_cpu = part.text("DefMemPerCPU") or jobs.config.text("DefMemPerCPU")
    return f"DefMemPerCPU={per_cpu}" if jobs.profile.memory is None and per_cpu else ""


def shown(nodes: list[Node]) -> str:
    """Generic resources of the nodes: `gpu:h100:8 on 4 nodes`."""
    kinds = Counter(
        ",".join(f"{each.name}:{each.type or ''}:{each.count}".replace("::", ":") for each in node.gpus)
        or "no GPU"
        for node in nodes
    )
    return "; ".join(f"{words} on {count} nodes" for words, count in kinds.items())


def mixed_gpus(jobs: Jobs) -> str:
    return shown(jobs.nodes) if jobs.profile.gpu_type is None and len(jobs.gpu_types) > 1 else ""


def slices(jobs: Jobs) -> str:
    names = [name for name in jobs.gpu_types if _MIG.fullmatch(name)]
    return ", ".join(names) if jobs.profile.gpu_type in (None, *names) else ""


def lacks_gpus_per_node(jobs: Jobs) -> bool:
    select = jobs.config.text("SelectType") or ""
    has_gpus = any(node.gpu_count for node in jobs.nodes)
    return has_gpus and select.endswith(("linear", "cons_res")) and jobs.profile.gpus == "gpus-per-node"


def little_locked_memory(jobs: Jobs) -> str:
    """The limit of the submitting shell is that of the ranks where Slurm propagates it."""
    names = ("PropagateResourceLimits", "PropagateResourceLimitsExcept")
    sent = jobs.config.values.get(names[0].lower(), "ALL").lower().split(",")
    kept = jobs.config.flags(names[1])
    propagated = not {"memlock", "all"} & {*kept} if kept else bool({"memlock", "all"} & {*sent})
    sets_limit = any("ulimit -l" in line for line in (*jobs.profile.setup, *jobs.profile.node_setup))
    limit = jobs.host.locked_memory if jobs.host else None
    if (
        limit is None
        or limit >= ENOUGH_LOCKED_BYTES
        or sets_limit
        or not propagated
        or not jobs.facts.has_gpus
    ):
        return ""
    return f"ulimit -l: {limit // 1024}, {jobs.config.evidence(*names)}"
