"""Checks of the facts that the nodes of an attempt wrote. Pure functions, standard library only.

A problem names the nodes at fault where the facts single them out. Of values that differ, those of a
majority count as right; without a majority no node is at fault.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from disttrain.records.processor_list import list_text
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

Severity = Literal["error", "warning"]
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """One finding (`records.PreflightProblem`)."""

    check: str
    message: str
    remedy: str
    nodes: tuple[str, ...] = ()
    """Hosts at fault."""
    severity: Severity = "error"


@dataclass(frozen=True)
class NodeFacts:
    """Facts that one node wrote."""

    node: int
    """Node rank."""
    host: str
    time: float
    """Time of writing by this node's clock, in seconds since the epoch."""
    agreement: Mapping[str, str]
    """Values that must be equal on all nodes."""
    processors: int
    """Number of processors that this job may use."""
    free_bytes: Mapping[str, int]
    """Free space by folder."""
    far_from_gpus: Sequence[int] = ()
    """Local ranks for which the job has no processor near their GPU; none without a scheduler."""
    missing_gpus: str | None = None
    """Message if the scheduler gave fewer GPUs than the run requested."""
    gpus: int | None = None
    """GPUs by NVML, 0 without a driver; None if NVML gave no answer, and for runs without GPUs."""
    gpu_problems: Sequence[Mapping[str, Any]] = ()
    """`severity`, `message` and `remedy` of each problem of a GPU."""
    gpu_path: Mapping[str, Any] | None = None
    """`jobs.node.preflight.link_rates.GpuPath` of its ranks' GPUs; None for one GPU or unknown links."""
    memory_lock_bytes: int | None = None
    """Limit of locked memory; None without a limit."""
    rdma: bool = False
    """Whether NCCL of this run may use adapters that register memory (InfiniBand, RoCE, EFA)."""
    link_bytes_per_s: float | None = None
    """Rate at which the ranks of the node can reach the others; None if unknown."""
    tcp: bool = False
    """Whether the ranks reach the others over TCP: gloo, or NCCL without an adapter."""
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    seconds: float = 0.0
    """Duration of collecting these facts."""
    defects: Sequence[str] = ()
    """Defects of its network by `jobs.fabric.defects`; none for runs over TCP."""

    @property
    def agreement_hash(self) -> str:
        """Equal for nodes whose `agreement` is equal: 12 hex digits of SHA-256."""
        text = json.dumps(dict(self.agreement), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ClockOffset:
    """Bounds of a node's clock less that of node 0, in seconds."""

    low_s: float
    high_s: float

    @property
    def beyond_limit_s(self) -> float | None:
        """The least possible offset if it exceeds `CLOCK_LIMIT_S` for certain, else None."""
        if self.low_s > CLOCK_LIMIT_S:
            return self.low_s
        return self.high_s if self.high_s < -CLOCK_LIMIT_S else None


def clock_offset(written: float, opened: float, seen: float) -> ClockOffset:
    """Bounds of a node's clock offset from the order of three events.

    Node 0 opened the attempt at `opened`. The node then read that and wrote its facts at `written` by its own
    clock. Node 0 saw the facts at `seen`. The node wrote between the two times of node 0.
    """
    return ClockOffset(written - seen, written - opened)


def check_agreement(facts: Sequence[NodeFacts]) -> list[Problem]:
    """Values that differ between nodes, in one problem for each set of nodes that differs and severity.

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
    found = []
    for (odd, severity), texts in sorted(differing.items()):
        where = f"{_named(odd)}: " if odd else ""
        more = f", and {len(texts) - 3} more values" if len(texts) > 3 else ""
        found.append(Problem("agreement", f"{where}{'; '.join(texts[:3])}{more}", remedy, odd, severity))
    return found


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


def check_clocks(host0: str, offsets: Mapping[str, ClockOffset]) -> list[Problem]:
    """Nodes whose clock differs from that of node 0; node 0 itself if most others differ from it."""
    wrong = {host: by for host, each in offsets.items() if (by := each.beyond_limit_s) is not None}
    if not wrong:
        return []
    remedy = "start the time service (chronyd, ntpd) on the node, or --skip-preflight"
    if len(offsets) == 1 or 2 * len(wrong) > len(offsets):
        host, by_s = max(wrong.items(), key=lambda each: abs(each[1]))
        message = f"clocks differ: {host} is {_offset(by_s)} {host0}"
        return [Problem("clock", message, remedy, (host0,) if len(offsets) > 1 else ())]
    return [
        Problem("clock", f"the clock of node {host} is {_offset(by_s)} that of node {host0}", remedy, (host,))
        for host, by_s in wrong.items()
    ]


def _offset(seconds: float) -> str:
    return f"at least {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'}"


def check_gpus(facts: Sequence[NodeFacts], ranks: int) -> list[Problem]:
    """Nodes with fewer GPUs than the run requested or than its ranks use on another node; unhealthy GPUs.

    `ranks` is the number of ranks of one node.
    """
    remedy = "resubmit without the node, and report it to the administrators"
    found = [
        Problem("gpus", f"node {each.host}: {each.missing_gpus}", remedy, (each.host,))
        for each in facts
        if each.missing_gpus
    ]
    most = min(ranks, max((each.gpus or 0 for each in facts), default=0))
    found += [
        Problem(
            "gpus",
            f"node {each.host} has {each.gpus or 'no'} usable GPUs, and the run uses {most} on each node",
            remedy,
            (each.host,),
        )
        for each in facts
        if not each.missing_gpus and each.gpus is not None and each.gpus < most
    ]
    for each in facts:
        for gpu in each.gpu_problems:
            message = f"node {each.host}: {gpu['message']}"
            at_fault = (each.host,) if gpu["severity"] == "error" else ()
            found.append(Problem("gpu_health", message, gpu["remedy"], at_fault, gpu["severity"]))
    return found


def check_processors(facts: Sequence[NodeFacts], ranks: int) -> list[Problem]:
    """A warning where a node has fewer processors than ranks."""
    few = [each for each in facts if each.processors < ranks]
    if not few:
        return []
    message = f"{_named([each.host for each in few])}: {few[0].processors} processors for {ranks} ranks"
    remedy = "request more: cpus_per_task of the site profile"
    return [Problem("processors", message, remedy, severity="warning")]


def check_affinity(facts: Sequence[NodeFacts]) -> list[Problem]:
    """Warnings of ranks far from their GPU, each with all its nodes."""
    hosts = _grouped((list_text(each.far_from_gpus), each.host) for each in facts if each.far_from_gpus)
    remedy = "set `sbatch: {gres-flags: enforce-binding}` in the site profile, or request whole nodes"
    return [
        Problem(
            "affinity",
            f"{_named(on)}: the job has no processor near the GPU of local ranks {ranks}",
            remedy,
            severity="warning",
        )
        for ranks, on in hosts.items()
    ]


def check_memory_lock(facts: Sequence[NodeFacts]) -> list[Problem]:
    """Too small limits of locked memory on nodes with RDMA, each with all nodes that have it."""
    found = []
    remedy = "have the scheduler's daemon started with LimitMEMLOCK=infinity and not propagate MEMLOCK"
    limits = [(each.memory_lock_bytes, each.host) for each in facts if each.rdma]
    for limit, hosts in _grouped((limit, host) for limit, host in limits if limit is not None).items():
        severity: Severity = "error" if limit < _MIN_LOCKED_BYTES else "warning"
        message = f"{_named(hosts)}: locked memory is limited to {_mib(limit)}, and RDMA needs it"
        at_fault = tuple(hosts) if severity == "error" else ()
        found.append(Problem("memory_lock", message, remedy, at_fault, severity))
    return found


def check_defects(facts: Sequence[NodeFacts]) -> list[Problem]:
    """Warnings of defects of the network, each with all nodes that have it."""
    hosts = _grouped((defect, each.host) for each in facts for defect in each.defects)
    remedy = "training may be slow; `submit.py fabric explain` on a node shows its network"
    return [
        Problem("defects", f"{_named(on)}: {defect}", remedy, severity="warning")
        for defect, on in hosts.items()
    ]


def check_free_space(facts: Sequence[NodeFacts], needed: Mapping[str, int]) -> list[Problem]:
    """Folders with less free space than `needed`, in bytes by folder."""
    found = []
    for folder, least in needed.items():
        free = {each.host: each.free_bytes[folder] for each in facts if folder in each.free_bytes}
        little = [host for host, count in free.items() if count < least]
        if little:
            count = min(free[host] for host in little)
            at_fault = tuple(little) if len(little) < len(free) else ()
            where = f"{_named(little)}: " if at_fault else ""
            message = f"{where}{folder} has {_mib(count)} free, and the run needs {_mib(least)}"
            remedy = "delete old runs (submit.py clean, then clean --purge), or choose another folder"
            found.append(Problem("free_space", message, remedy, at_fault))
    return found


def check_shared_folder(
    folder: str, hosts: Sequence[str], present: Iterable[int], within_s: float
) -> list[Problem]:
    """Nodes whose facts node 0 did not find in the run directory.

    They are at fault if at least half of the other nodes share the folder; else the folder or node 0 is.
    """
    silent = tuple(host for node, host in enumerate(hosts) if node not in set(present))
    if not silent:
        return []
    message = f"{_named(silent)} wrote nothing that node {hosts[0]} can see to {folder} within {within_s:g} s"
    remedy = "mount the shared file system there, or choose --runs on one that all nodes share"
    is_common = 2 * len(silent) > len(hosts) - 1
    return [Problem("shared_folder", message, remedy, () if is_common else silent)]


def check_exclusions(entries: Iterable[ExcludedNode]) -> list[Problem]:
    """Warnings for nodes of the job that are on the exclusion list.

    A job has such nodes if it was submitted before the entry or by hand, or if too few other nodes are left.
    """
    return [
        Problem(
            "excluded",
            f"node {each.host} is on the exclusion list ({each.by}: {each.reason})",
            f"resubmit without it (sbatch --exclude={each.host}), or submit.py nodes --clear {each.host}",
            (each.host,),
            "warning",
        )
        for each in entries
    ]


def check_storage_rates(facts: Sequence[NodeFacts]) -> list[Problem]:
    """Warnings for nodes with slow storage."""
    found = []
    remedy = "look at the mount and the network of the node; checkpoints will be slow"
    for verb, name in (("writes", "write_bytes_per_s"), ("reads", "read_bytes_per_s")):
        rates = {each.host: rate for each in facts if (rate := getattr(each, name)) is not None}
        usual = statistics.median(rates.values()) if rates else 0.0
        for host, rate in rates.items():
            slow = len(rates) > 2 and rate < _SLOW_STORAGE * usual
            if slow or rate < _MIN_STORAGE_BYTES_PER_S:
                least = (
                    f"the median is {usual / 1e6:.1f}"
                    if slow
                    else f"below {_MIN_STORAGE_BYTES_PER_S / 1e6:g}"
                )
                message = f"node {host} {verb} {rate / 1e6:.1f} MB/s in the run directory, {least} MB/s"
                found.append(Problem("storage_rate", message, remedy, (host,), "warning"))
    return found


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that end the start."""
    return [each for each in problems if each.severity == "error"]


def is_refused(problems: Iterable[Problem]) -> bool:
    """Whether a problem is an error."""
    return bool(errors(problems))


def refusal(problems: Sequence[Problem]) -> str:
    """The first error and its remedy, in one line."""
    first, *others = errors(problems)
    more = f" (and {len(others)} more in preflight.json)" if others else ""
    return f"{first.message}; {first.remedy}{more}"


def nodes_at_fault(problems: Iterable[Problem], hosts: Sequence[str]) -> tuple[str, ...]:
    """Hosts that errors single out, in rank order. None are at fault where they are all of several nodes: the
    reason is then common to them."""
    blamed = {host for each in errors(problems) for host in each.nodes}
    if len(blamed) == len(set(hosts)) > 1:
        return ()
    return tuple(host for host in dict.fromkeys(hosts) if host in blamed)


def as_record(problem: Problem) -> dict[str, Any]:
    """`records.PreflightProblem`."""
    return {**asdict(problem), "nodes": list(problem.nodes)}


def _grouped(found: Iterable[tuple[T, str]]) -> dict[T, list[str]]:
    """The hosts of each value."""
    hosts: dict[T, list[str]] = {}
    for value, host in found:
        hosts.setdefault(value, []).append(host)
    return hosts


def _named(hosts: Sequence[str]) -> str:
    return f"node{'s' * (len(hosts) > 1)} {_hosts(hosts)}"


def _hosts(hosts: Sequence[str]) -> str:
    listed = ", ".join(hosts[:8])
    return f"{listed} and {len(hosts) - 8} more" if len(hosts) > 8 else listed


def _mib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
