"""Section `resources`: nodes, ranks and devices."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from disttrain.config.sections.base import Section


class ResourcesConfig(Section):
    """Nodes, ranks and devices of the job. The world size is `nodes * gpus_per_node`; for strategy dp,
    `nodes`."""

    nodes: PositiveInt = 1
    """Number of nodes; without Slurm each node is one agent process on this machine."""
    gpus_per_node: PositiveInt = 1
    """Ranks per node: one per GPU, or one process each on the CPU. With `parallel.strategy=dp`: GPUs of the
    only rank."""
    device: Literal["auto", "cpu", "cuda", "shared"] = "auto"
    """`auto`: cuda where every local rank has its own GPU, else cpu. A start ends at once if its nodes
    differ, or if a node has GPUs that CUDA does not find. `shared`: all ranks of a node use its first GPU and
    communicate through gloo; the Slurm job requests no GPU."""
    threads_per_rank: PositiveInt = 1
    """Intra-op threads per rank (`torch.set_num_threads`)."""
