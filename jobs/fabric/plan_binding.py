"""Processors of each rank of a node, near its GPU and within the cpuset of the job. Standard library only.

`plan` is pure. A core is never divided: its hardware threads go to one rank.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROCESSOR = re.compile(r"cpu(\d+)")
_NODE = re.compile(r"node(\d+)")
_MOST_UNUSED = 1 / 4
"""Largest share of the processors of a job that may stay unused for the ranks to be near their GPUs."""
_HELPER_THREADS = 1
"""Processors of a rank beside those of its compute threads: for the threads of gloo, NCCL and telemetry."""

Core = tuple[int, ...]
"""The processors of one core: its hardware threads."""


@dataclass(frozen=True)
class Processor:
    """Place of one processor of the kernel in the machine."""

    number: int
    package: int
    """Socket."""
    numa_node: int
    core: int
    """Number of the core within its package."""


@dataclass(frozen=True)
class BindingPlan:
    """Processors of each rank of the node; none where no rank is bound."""

    ranks: tuple[tuple[int, ...], ...]
    reason: str
    """One clause, also where no rank is bound."""
    unused: tuple[int, ...] = ()
    """Processors of the cpuset that no rank has."""


def read_processors(root: Path = Path("/")) -> list[Processor]:
    """The processors of this machine that are online; empty where the kernel does not describe them."""
    found = []
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*"):
        named = _PROCESSOR.fullmatch(folder.name)
        try:
            package = int((folder / "topology/physical_package_id").read_text())
            core = int((folder / "topology/core_id").read_text())
        except (OSError, ValueError):  # offline
            continue
        nodes = [int(node[1]) for each in folder.glob("node*") if (node := _NODE.fullmatch(each.name))]
        if named:
            found.append(Processor(int(named[1]), package, nodes[0] if nodes else 0, core))
    return sorted(found, key=lambda processor: processor.number)


def plan(
    processors: Sequence[Processor],
    cpuset: Collection[int],
    gpu_numa_nodes: Sequence[int | None],
    threads_per_rank: int = 1,
) -> BindingPlan:
    """Divide the processors of `cpuset` among the ranks of a node.

    Parameters
    ----------
    processors : of the machine
    cpuset : numbers of the processors that the job may use
    gpu_numa_nodes : for each rank of the node, the NUMA node of its GPU; None where it has none or is unknown
    threads_per_rank : compute threads of a rank

    Ranks whose GPUs are on one NUMA node share its cores evenly, and those of NUMA nodes of the same package
    that have no GPU. Cores of other packages stay unused; if they are more than a quarter, the ranks share
    them evenly as well. Where a GPU's NUMA node is unknown or lacks cores, the ranks share all cores in
    order. No rank is bound where a rank would have no processor beside its compute threads.
    """
    ranks = len(gpu_numa_nodes)
    if ranks == 1:
        return BindingPlan((), "one rank uses all processors of the job")
    usable = [processor for processor in processors if processor.number in cpuset]
    if len(usable) < len(set(cpuset)):
        return BindingPlan((), "the kernel does not describe all processors of the job")
    least = threads_per_rank + _HELPER_THREADS
    near = _near_gpus(usable, gpu_numa_nodes)
    if near is not None and min(map(len, near)) > 0:
        found = _with_other_sockets(usable, near)
        if min(map(len, found.ranks)) >= least:
            return found
    even = _blocks(_cores(usable), ranks)
    if min(map(len, even)) < least:
        text = f"{ranks} ranks with {threads_per_rank} compute threads each"
        return BindingPlan((), f"{text} would share {len(usable)} processors")
    return BindingPlan(even, "an equal share of the cores of the job")


def _with_other_sockets(usable: Sequence[Processor], near: Sequence[tuple[int, ...]]) -> BindingPlan:
    """Processors `near` the GPUs, and equal shares of all others if those are too many to stay unused.

    NCCL binds its threads to those of a rank's processors that are near its GPU, where there are any.
    """
    text = "cores of the NUMA node of the rank's GPU"
    given = {number for processors in near for number in processors}
    others = [each for each in usable if each.number not in given]
    if not others:
        return BindingPlan(tuple(near), text)
    if len(others) <= _MOST_UNUSED * len(usable):
        unused = tuple(each.number for each in others)
        return BindingPlan(
            tuple(near), f"{text}; {len(unused)} processors of other sockets stay unused", unused
        )
    shares = _blocks(_cores(others), len(near))
    ranks = tuple(tuple(sorted(own + share)) for own, share in zip(near, shares, strict=True))
    return BindingPlan(ranks, f"{text}, and an equal share of those of other sockets")


def _near_gpus(
    usable: Sequence[Processor], gpu_numa_nodes: Sequence[int | None]
) -> tuple[tuple[int, ...], ...] | None:
    """Processors of each rank on the NUMA node or the package of its GPU; None if they are unknown."""
    ranks_on: dict[int, list[int]] = {}
    for rank, node in enumerate(gpu_numa_nodes):
        if node is None:
            return None
        ranks_on.setdefault(node, []).append(rank)
    package_of = {processor.numa_node: processor.package for processor in usable}
    if not ranks_on.keys() <= package_of.keys():
        return None
    cores_of = {node: _cores([each for each in usable if each.numa_node == node]) for node in package_of}
    extra: dict[int, list[Core]] = {node: [] for node in ranks_on}
    for node in sorted(package_of.keys() - ranks_on.keys()):
        beside = [other for other in sorted(ranks_on) if package_of[other] == package_of[node]]
        if beside:
            fewest = min(
                beside, key=lambda other: (len(cores_of[other]) + len(extra[other])) / len(ranks_on[other])
            )
            extra[fewest] += cores_of[node]
    found: dict[int, tuple[int, ...]] = {}
    for node, ranks in ranks_on.items():
        # each rank has cores of its GPU's own NUMA node; what is left over of the two goes to different ranks
        own, more = _blocks(cores_of[node], len(ranks)), reversed(_blocks(extra[node], len(ranks)))
        found |= {rank: tuple(sorted(a + b)) for rank, a, b in zip(ranks, own, more, strict=True)}
    return tuple(found[rank] for rank in range(len(gpu_numa_nodes)))


def _cores(usable: Sequence[Processor]) -> list[Core]:
    """The cores of these processors, by package and NUMA node."""
    cores: dict[tuple[int, int, int], list[int]] = {}
    for processor in usable:
        key = (processor.package, processor.numa_node, processor.core)
        cores.setdefault(key, []).append(processor.number)
    return [tuple(cores[key]) for key in sorted(cores, key=lambda key: (key[0], key[1], cores[key][0]))]


def _blocks(cores: Sequence[Core], count: int) -> tuple[tuple[int, ...], ...]:
    """`count` blocks of neighbouring cores, whose numbers of cores differ by at most 1."""
    edges = [index * len(cores) // count for index in range(count + 1)]
    return tuple(
        tuple(sorted(number for core in cores[first:last] for number in core))
        for first, last in itertools.pairwise(edges)
    )


def variable_text(chosen: BindingPlan) -> str:
    """The plan as an environment variable: `0,1,2;3,4,5` for two ranks; empty without a binding."""
    return ";".join(",".join(map(str, processors)) for processors in chosen.ranks)


def numa_nodes(pci_addresses: Sequence[str], root: Path = Path("/")) -> list[int | None]:
    """The NUMA node of each PCI device; None where the kernel reports none (-1)."""
    return [_numa_node(root / "sys/bus/pci/devices" / _sysfs_address(each)) for each in pci_addresses]


def _sysfs_address(address: str) -> str:
    """NVML's `00000000:1A:00.0` as sysfs names it: `0000:1a:00.0`."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _numa_node(device: Path) -> int | None:
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def gpus_of_ranks(nodes: Sequence[int | None], ranks: int, config: Mapping[str, object]) -> list[int | None]:
    """The NUMA node of the GPU of each rank, from those of the visible GPUs."""
    if config["device"] == "shared" and nodes:
        return [nodes[0]] * ranks
    return list(nodes[:ranks]) if len(nodes) >= ranks else [None] * ranks
