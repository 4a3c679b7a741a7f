"""The process group: joined at the start, checked against the requested shape, and its collectives."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError, in_one_line
from disttrain.runtime import device_agreement
from disttrain.runtime.process import RankInfo, rank_info
from disttrain.runtime.rank_heartbeat import heartbeat

T = TypeVar("T")


class FailedOnRank(RuntimeError):
    """An exception on one rank, raised on all ranks; the message is one line that names the rank."""


@dataclass(frozen=True)
class World(RankInfo):
    """This rank, its device and its process group. Every collective is a no-op in a world of one rank.

    `all_reduce` and `broadcast` take tensors and use the process group of training. Collectives of Python
    values are for control: they run between hosts through gloo, so that no host waits for its device.
    """

    device: torch.device
    backend: str | None
    """Backend of the process group; None for a single process, which has no group."""
    collective_timeout: timedelta | None = field(default=None, kw_only=True)
    """Timeout of a collective, for further groups; None: PyTorch's own."""
    control: dist.ProcessGroup | None = field(default=None, kw_only=True)
    """Group of control collectives; None: the process group."""
    gpus_per_rank: int = field(default=1, kw_only=True)
    """GPUs that this rank computes on, from `device` on; 1 on the CPU."""
    waiting: Callable[[], AbstractContextManager[None]] = field(default=heartbeat.collective, kw_only=True)
    """A context of each wait for other ranks."""

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> torch.Tensor:
        """Reduce `tensor` over all ranks, or over those of `group`, in place, and return it."""
        if self.size > 1:
            with self.waiting():
                dist.all_reduce(tensor, op, group=group)
        return tensor

    def start_all_reduce(
        self,
        tensor: torch.Tensor,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> dist.Work | None:
        """Begin `all_reduce` and return at once; None in a world of one rank.

        `tensor` holds the result once the work is completed.
        """
        return dist.all_reduce(tensor, op, group=group, async_op=True) if self.size > 1 else None

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite `tensor` with that of rank 0 in place, and return it."""
        if self.size > 1:
            contiguous = tensor.contiguous()  # NCCL refuses a tensor with gaps
            with self.waiting():
                dist.broadcast(contiguous, src=0)
            if contiguous is not tensor:
                tensor.copy_(contiguous)
        return tensor

    def all_gather_object(self, value: Any) -> list[Any]:
        """The picklable `value` of every rank, by rank, on all ranks. Too slow for every step."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self.waiting():
            dist.all_gather_object(values, value, group=self.control)
        return values

    def of_rank0(self, value: T) -> T:
        """The picklable `value` of rank 0, on all ranks."""
        shared: T = self.all_gather_object(value if self.rank == 0 else None)[0]
        return shared

    def gather_object(self, value: Any) -> list[Any] | None:
        """The picklable `value` of every rank, by rank, on rank 0; None on the others.

        Costs rank 0 what `all_gather_object` costs every rank. Returns after all ranks have called.
        """
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self.waiting():
            dist.gather_object(value, values, group=self.control)
        return values

    def on_all_ranks(self, act: Callable[[], T]) -> list[T]:
        """Run `act` on every rank; the results by rank, on all ranks. `act` contains no collective.

        Raises `FailedOnRank` on every rank if `act` raises on any, so that no rank is left waiting in the
        next collective.
        """
        value, problem = None, None
        try:
            value = act()
        except Exception as error:
            problem = in_one_line(error)
        results = self.all_gather_object((value, problem))
        for rank, (_, failed) in enumerate(results):
            if failed is not None:
                raise FailedOnRank(f"rank {rank}: {failed}")
        return [result for result, _ in results]

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        """The element-wise maximum of `values` over ranks, on all ranks."""
        return self.start_all_reduce_max(values)()

    def start_all_reduce_max(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin `all_reduce_max` and return at once; the result waits, and returns the maximum.

        While gloo's operation is open, `sys.exit` and the end of a script wait for it: until all ranks have
        begun it, or up to the timeout of the group. A rank that leaves before, such as after an exception,
        ends by `os._exit`, as `exit_process` of the entry point does.
        """
        if self.size == 1:
            return lambda: list(values)
        on_device = self.backend == "nccl" and self.control is None
        device = self.device if on_device else torch.device("cpu")
        reduced = torch.tensor(values, dtype=torch.float64, device=device)
        work = dist.all_reduce(reduced, dist.ReduceOp.MAX, group=self.control, async_op=True)

        def wait() -> list[float]:
            with self.waiting():
                work.wait()
                return list(reduced.tolist())

        return wait


def check_group_size(info: RankInfo) -> None:
    """Raise `ConfigError` unless the process group of a script has all ranks that torchrun started."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != info.size:
        raise ConfigError(
            f"no process group of WORLD_SIZE={info.size} ranks was made, but one of {size}: "
            "call torch.distributed.init_process_group() first"
        )


def ensure_group(world: World) -> None:
    """Create the process group of a world of one rank, which wrappers such as DDP need; else a no-op."""
    if world.size == 1 and not dist.is_initialized():
        backend = "nccl" if world.device.type == "cuda" and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def set_timeouts(mesh: DeviceMesh, world: World) -> None:
    """Give the groups of `mesh` the timeout of the world's: `init_device_mesh` gives them PyTorch's own."""
    if world.collective_timeout is not None:
        for group in mesh.get_all_groups():
            _set_pg_timeout(world.collective_timeout, group)


def _check_interface(given: str, rank: int) -> None:
    """Raise `ConfigError` if gloo's interface does not exist on this node."""
    there = [name for _, name in socket.if_nameindex()]
    missing = [name for name in given.split(",") if name and name not in there]
    if missing:
        raise ConfigError(
            f"GLOO_SOCKET_IFNAME={given}: the node of rank {rank} has no interface {missing[0]!r}; "
            f"it has {', '.join(there)}"
        )


@contextmanager
def open_world(config: Config, store: dist.Store | None = None) -> Iterator[World]:
    """Join the process group, and leave it at the end of the block; a group that the script has made stays.

    A collective that takes longer than `job.collective_timeout_s` raises. After an exception the group stays:
    its shutdown can wait for peers that sit in a collective, and the process must exit for torchrun to end
    them. `store`: used in place of torchrun's own.

    Raises `ConfigError` when torchrun's world is not `resources.nodes x resources.gpus_per_node`: a
    rendezvous can form a smaller world without an error, and training must not run in one. Raises
    `ConfigError` or `NodeFault` on all ranks when devices or backends differ, or one lacks a feature.
    """
    info, resources, joined = rank_info(), config.resources, dist.is_initialized()
    if (info.nodes, info.local_size) != (resources.nodes, resources.gpus_per_node // config.gpus_per_rank):
        raise ConfigError(
            f"the world has {info.nodes} nodes x {info.local_size} ranks, but the config requests "
            f"resources.nodes={resources.nodes} x resources.gpus_per_node={resources.gpus_per_node}"
        )
    if joined:
        check_group_size(info)
    if info.nodes > 1:
        _check_interface(os.environ.get("GLOO_SOCKET_IFNAME", ""), info.rank)
    torch.set_num_threads(resources.threads_per_rank)
    chosen = device_agreement.choose(config, info)
    timeout, control = timedelta(seconds=config.job.collective_timeout_s), None
    with heartbeat.collective():
        if info.size > 1 and store is None and not joined:
            store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
        if store is not None:
            store.set_timeout(timeout)
            device_agreement.agree(chosen, info.rank, info.size, store)
        elif verdict := device_agreement.find_problem([chosen]):  # this rank alone
            raise verdict.error(info.rank)
        device = torch.device(chosen.device)
        if store is not None:
            dist.init_process_group(
                chosen.backend, timeout=timeout, store=dist.PrefixStore("default_pg", store),
                rank=info.rank, world_size=info.size, device_id=device if chosen.backend == "nccl" else None,
            )  # fmt: skip
            if chosen.backend == "nccl":
                # connect only ranks that exchange messages: of a thousand ranks, a connection to each peer
                # exceeds the usual limit of open files
                os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
                control = dist.new_group(backend="gloo", timeout=timeout)
    backend = dist.get_backend() if joined else chosen.backend if info.size > 1 else None
    yield World(
        **vars(info), device=device, backend=backend, collective_timeout=None if joined else timeout,
        control=control, gpus_per_rank=config.gpus_per_rank if device.type == "cuda" else 1,
    )  # fmt: skip
    if dist.is_initialized() and not joined:
        dist.destroy_process_group()


def launcher_store(prefix: str) -> dist.Store | None:
    """The store in which torchrun's ranks meet, with `prefix` before each key; None for a single rank."""
    if rank_info().size == 1:
        return None
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return dist.PrefixStore(prefix, store)
