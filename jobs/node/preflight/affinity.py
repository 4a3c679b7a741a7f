"""Processors that each rank of a node may use: measured, and compared with those of the job and of its GPU.

`measure` binds a thread of this process for each rank: the kernel answers it as it will answer the rank. The
rest is pure.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from disttrain.records.processor_list import list_text
from disttrain.records.run_directory import PROCESSORS
from jobs.fabric.description import Fabric, Gpu
from jobs.fabric.pci import parse_cores
from jobs.fabric.plan_binding import read_processors
from jobs.node.start_command import bind_to_processors


@dataclass(frozen=True)
class Affinity:
    """Processors of the ranks of one node, in the form `0-7,64-71`."""

    of_job: str
    """Those that the job may use."""
    cores: int
    """Number of their cores."""
    of_ranks: Sequence[str]
    """Those that each local rank may use."""
    near_gpus: Sequence[str]
    """Those nearest to the GPU of each local rank; empty without a GPU, and where the kernel names none."""
    is_exclusive: bool = True
    """Whether the job was given all of `of_job`; else its ranks are not bound, and share them on purpose."""


def measure(
    environ: Mapping[str, str], fabric: Fabric, gpus: Sequence[Gpu], ranks: int, allocated: int | None
) -> Affinity:
    """The processors that ranks with the environment `environ` get.

    `gpus`: those of the job in CUDA's order; `allocated`: number of processors of the job, if known.
    """
    processors = os.sched_getaffinity(0)
    cores = {(each.package, each.core) for each in read_processors() if each.number in processors}
    places = {gpu.pci.address: list_text(gpu.pci.cores) for gpu in fabric.gpus}
    return Affinity(
        list_text(processors),
        len(cores) or len(processors),
        [_of_rank(environ.get(PROCESSORS, ""), rank) for rank in range(ranks)],
        [places.get(gpus[rank].pci.address, "") if rank < len(gpus) else "" for rank in range(ranks)],
        is_exclusive=allocated is None or len(processors) <= allocated,
    )


def _of_rank(chosen: str, local_rank: int) -> str:
    found: list[str] = []

    def bind() -> None:
        bind_to_processors(chosen, local_rank)
        found.append(list_text(os.sched_getaffinity(0)))  # of this thread alone

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    return found[0]


def affinity_defects(affinity: Affinity) -> list[tuple[str, str]]:
    """Defects of the processors of a node's ranks, each with the remedy.

    Shared processors are none where the job has fewer cores than ranks.
    """
    of_job = set(parse_cores(affinity.of_job))
    of_ranks = [set(parse_cores(text)) for text in affinity.of_ranks]
    near = [set(parse_cores(text)) for text in affinity.near_gpus]
    outside = [rank for rank, own in enumerate(of_ranks) if own - of_job]
    far = [rank for rank, own in enumerate(of_ranks) if near[rank] and not own & near[rank]]
    without = [rank for rank in far if not of_job & near[rank]]
    far = [rank for rank in far if rank not in without]
    shared: set[int] = set()
    if affinity.is_exclusive and affinity.cores >= len(of_ranks):
        pairs = combinations(range(len(of_ranks)), 2)
        shared = {rank for pair in pairs if of_ranks[pair[0]] & of_ranks[pair[1]] for rank in pair}
    confine = "have jobs confined to their processors (TaskPlugin=task/cgroup, ConstrainCores=yes)"
    enforce = "set `sbatch: {gres-flags: enforce-binding}` in the site profile, or request whole nodes"
    spread = "request GPUs of all NUMA nodes (whole nodes), or set job.binding=none"
    more = "request more (cpus_per_task of the site profile): a rank needs one beside its compute threads"
    found = [
        (outside, "{} may use processors that are not of the job", confine),
        (without, "the job has no processor near the GPU of {}", enforce),
        (far, "no processor of {} is near its GPU", spread),
        (shared, f"{{}} share the processors {affinity.of_job}", more),
    ]
    return [(text.format(_named(ranks)), remedy) for ranks, text, remedy in found if ranks]


def _named(ranks: Collection[int]) -> str:
    return f"local rank{'s' * (len(ranks) > 1)} {list_text(ranks)}"
