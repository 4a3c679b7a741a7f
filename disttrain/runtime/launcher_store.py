"""The store of torchrun's agent, for process groups of further processes of the ranks."""

from __future__ import annotations

import os

import torch.distributed as dist

from disttrain.runtime.rank_info import rank_info


def launcher_store(prefix: str) -> dist.Store | None:
    """The store in which torchrun's ranks meet, with `prefix` before each key; None for a single rank."""
    if rank_info().size == 1:
        return None
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore(prefix, store)
