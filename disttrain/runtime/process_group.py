"""The process group: this rank's device, and whether the world is the one that was asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from disttrain.config.sections import ResourcesConfig
from disttrain.errors import ConfigError, in_one_line
from disttrain.runtime.rank_info import Place, place

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""A rank that waits longer than this for its peers raises: long enough for a slow first step, short
enough that a dead peer does not hold the allocation for the night."""

T = TypeVar("T")


class FailedTogether(RuntimeError):
    """What was done together went wrong on some rank; the message is one line naming it, on every rank."""


@dataclass(frozen=True)
class World(Place):
    """The process group as this rank sees it."""

    device: torch.device
    backend: str | None
    """Null for a single process, which needs no group."""

    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """Sum over ranks, in place; the tensor itself where there is one rank."""
        if self.size > 1:
            dist.all_reduce(tensor, op)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Every rank's picklable `value`, by rank, on all ranks. Slow: not for the step."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def together(self, act: Callable[[], T]) -> list[T]:
        """What `act()` gives on each rank, by rank, on all ranks; `FailedTogether` if it raises on any.

        So a rank that fails never leaves the others waiting for it in the next collective.
        """
        value, problem = None, None
        try:
            value = act()
        except Exception as error:
            problem = in_one_line(error)
        answers = self.gather((value, problem))
        for rank, (_, failed) in enumerate(answers):
            if failed is not None:
                raise FailedTogether(f"rank {rank}: {failed}")
        return [answer for answer, _ in answers]

    def maximum(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over ranks, on all ranks. Waits for the device."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return list(found.tolist())


@contextmanager
def open_world(resources: ResourcesConfig) -> Iterator[World]:
    """Join the process group, and leave it at the end.

    Raises `ConfigError` when torchrun's world is not `resources.nodes x resources.gpus_per_node`: a
    rendezvous can go wrong in silence, and training with the wrong world size must not.
    """
    here = place()
    asked = (resources.nodes, resources.gpus_per_node)
    if (here.nodes, here.local_size) != asked:
        raise ConfigError(
            f"the world is {here.nodes} nodes x {here.local_size} ranks, but resources.nodes={asked[0]} x "
            f"resources.gpus_per_node={asked[1]} was asked for"
        )
    device = _device(resources.device, here.local_rank, here.local_size)
    shared = resources.device == "shared"
    torch.set_num_threads(resources.threads_per_rank)
    backend = None
    if here.size > 1:
        # NCCL takes no two ranks on one device
        backend = "nccl" if device.type == "cuda" and not shared else "gloo"
        dist.init_process_group(
            backend, timeout=COLLECTIVE_TIMEOUT, device_id=device if backend == "nccl" else None
        )
    try:
        yield World(**vars(here), device=device, backend=backend)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _device(wanted: str, local_rank: int, local_size: int) -> torch.device:
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "shared":
        if not count:
            raise ConfigError("resources.device=shared, but no CUDA device is visible")
        local_rank = 0
    elif count < local_size:
        if wanted == "cuda":
            raise ConfigError(
                f"resources.device=cuda, but {count} CUDA devices are visible to "
                f"{local_size} ranks on this node"
            )
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def machine_id() -> str:
    """The same for every rank on one physical machine, network namespaces and containers included."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def usable_cpus() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def nccl_version() -> str | None:
    """NCCL as torch was built with it, or None."""
    if not torch.cuda.is_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())
