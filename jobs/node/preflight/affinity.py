"""Processors of the job near the GPUs of its ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from jobs.fabric.description import Fabric, Gpu


def ranks_far_from_gpus(fabric: Fabric, gpus: Sequence[Gpu], ranks: int) -> list[int]:
    """Local ranks for which the job has no processor near their GPU; `gpus` are those of the job."""
    near = {gpu.pci.address: gpu.pci.cores for gpu in fabric.gpus}
    usable = os.sched_getaffinity(0)
    cores = [near.get(gpu.pci.address, ()) for gpu in gpus[:ranks]]
    return [rank for rank, own in enumerate(cores) if own and usable.isdisjoint(own)]
