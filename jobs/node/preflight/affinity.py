"""Processors that each rank of a node may use: measured, and compared with those of the job and of its GPU.

`measure` binds a thread of this process for each rank, as the rank will be bound, and reads its processors.
The rest is pure.
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
from jobs.node.start_command import bind_to_processors


@dataclass(frozen=True)
class Affinity:
    """Processors of the ranks of one node, in the form `0-7,64-71`."""

    of_job: str
    """Those that the job may use."""
    of_ranks: Sequence[str]
    """Those that each local rank may use."""
    near_gpus: Sequence[str]
    """Those nearest to the GPU of each local rank; empty without a GPU, and where the kernel names none."""
    are_bound: bool = True
    """Whether the agent binds the ranks. Else they share the processors of the job, because it has too few of
    them, or shares them with other jobs (`jobs.node.processor_binding`)."""


def measure(environ: Mapping[str, str], fabric: Fabric, gpus: Sequence[Gpu], ranks: int) -> Affinity:
    """The processors that ranks with the environment `environ` get; `gpus` are those of the job."""
    chosen = environ.get(PROCESSORS, "")
    places = {gpu.pci.address: list_text(gpu.pci.cores) for gpu in fabric.gpus}
    return Affinity(
        list_text(os.sched_getaffinity(0)),
        [_of_rank(chosen, rank) for rank in range(ranks)],
        [places.get(gpus[rank].pci.address, "") if rank < len(gpus) else "" for rank in range(ranks)],
        are_bound=bool(chosen),
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
    """Defects of the processors of a node's ranks, each with the remedy."""
    of_job = set(parse_cores(affinity.of_job))
    of_ranks = [set(parse_cores(text)) for text in affinity.of_ranks]
    near = [set(parse_cores(text)) for text in affinity.near_gpus]
    far = [rank for rank, own in enumerate(of_ranks) if near[rank] and not own & near[rank]]
    without = [rank for rank in far if not of_job & near[rank]]
    far = [rank for rank in far if rank not in without]
    shared: set[int] = set()
    if affinity.are_bound:
        pairs = combinations(range(len(of_ranks)), 2)
        shared = {rank for pair in pairs if of_ranks[pair[0]] & of_ranks[pair[1]] for rank in pair}
    enforce = "set `sbatch: {gres-flags: enforce-binding}` in the site profile, or request whole nodes"
    spread = "request GPUs of all NUMA nodes (whole nodes), or set job.binding=none"
    unbind = "set job.binding=none, and report that the node refuses the binding of its ranks"
    found = [
        (without, "the job has no processor near the GPU of {}", enforce),
        (far, "no processor of {} is near its GPU", spread),
        (shared, "{} share processors, although each was to have its own", unbind),
    ]
    return [(text.format(_named(ranks)), remedy) for ranks, text, remedy in found if ranks]


def _named(ranks: Collection[int]) -> str:
    return f"local rank{'s' * (len(ranks) > 1)} {list_text(ranks)}"
