"""Agreement of all ranks on device type, backend and precision, before the process group starts.

A process group of different devices or backends hangs or fails without naming the node that differs. Each
rank puts its `RankDevice` into the rendezvous store, rank 0 compares them, and all ranks read its verdict:
three small messages per rank.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch.distributed as dist

from disttrain.errors import ConfigError, NodeFault
from disttrain.runtime.attention_kernel import require_kernel
from disttrain.runtime.compiler import require_compiler
from disttrain.runtime.device import choose_device
from disttrain.runtime.device_precision import choose_precision
from disttrain.runtime.rank_info import RankInfo

Problem = Literal["config", "node"]


@dataclass(frozen=True)
class RankDevice:
    """Device that one rank chose on its node, or the reason why it has none."""

    node: str
    """Host name."""
    device: str = ""
    """`cpu`, or `cuda:<index>`."""
    backend: str = ""
    """`gloo` or `nccl`."""
    precision: str = ""
    """Resolved `precision.dtype`."""
    problem: Problem | None = None
    """`config`: the node lacks the requested GPUs, precision, attention kernel or compiler, or a GPU for an
    option that needs one. `node`: the node's GPUs cannot be used."""
    message: str = ""

    @property
    def type(self) -> str:
        """Device type and backend, which are equal on all ranks of a process group."""
        return f"{self.device.partition(':')[0]} with {self.backend}"


@dataclass(frozen=True)
class Verdict:
    """Reason not to start: the problem, and the first rank of the node that has it."""

    problem: Problem
    message: str
    rank: int

    def error(self) -> ConfigError | NodeFault:
        """The exception to raise on every rank."""
        return ConfigError(self.message) if self.problem == "config" else NodeFault(self.message, self.rank)


def choose(
    requested: str,
    precision: str,
    info: RankInfo,
    gpus_per_rank: int = 1,
    attention: str = "auto",
    on_gpu: str | None = None,
    compiles_with: str | None = None,
    backend: str = "auto",
) -> RankDevice:
    """Choose this rank's device for `resources.device=requested`, `precision.dtype=precision`,
    `train.attention=attention`, the backend of
    `torch.compile`, and `parallel.backend=backend`; `on_gpu` is the refusal of an option that a CPU
    does not have. Raises nothing."""
    node = socket.gethostname()
    try:
        device = choose_device(requested, info.local_rank, info.local_size * gpus_per_rank)
        resolved, _ = choose_precision(precision, device)
        require_kernel(attention, device)
        require_compiler(compiles_with, device)
        if on_gpu is not None and device.type == "cpu":
            raise ConfigError(f"this rank trains on the CPU: {on_gpu}")
        if backend == "nccl" and (device.type == "cpu" or requested == "shared"):
            raise ConfigError(
                "parallel.backend=nccl needs a GPU for each rank, and this rank has none of its own; "
                "use gloo or auto"
            )
    except ConfigError as error:
        return RankDevice(node, problem="config", message=str(error))
    except Exception as error:  # a broken driver raises errors of many types
        return RankDevice(node, problem="node", message=" ".join(str(error).split()))
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" and requested != "shared" else "gloo"
    return RankDevice(node, str(device), backend, resolved)


def agree(own: RankDevice, rank: int, size: int, store: dist.Store) -> None:
    """Raise the same `ConfigError` or `NodeFault` on all ranks unless all have one device type, backend and
    precision.

    Waits for all ranks, up to the timeout of `store`.
    """
    store = dist.PrefixStore("device", store)
    store.set(str(rank), json.dumps(asdict(own)))
    if rank == 0:
        chosen = [RankDevice(**json.loads(text)) for text in store.multi_get([str(r) for r in range(size)])]
        found = find_problem(chosen)
        store.set("verdict", json.dumps(asdict(found) if found else None))
    verdict = json.loads(store.get("verdict"))
    if verdict is not None:
        raise Verdict(**verdict).error()


def find_problem(chosen: Sequence[RankDevice]) -> Verdict | None:
    """The reason why ranks with these devices, by rank, cannot train together; None if they can.

    A problem of some nodes is theirs, so a start on other nodes may succeed; a problem of all ranks is one of
    the config, unless their GPUs are out of order.
    """
    failed = [(rank, each) for rank, each in enumerate(chosen) if each.problem]
    if failed:
        everywhere = len(failed) == len(chosen)
        rank, each = next((pair for pair in failed if pair[1].problem == "node"), failed[0])
        problem: Problem = "config" if everywhere and each.problem == "config" else "node"
        return Verdict(problem, f"node {each.node}: {each.message}", rank)
    kinds = {each.type for each in chosen}
    if len(kinds) == 1:
        return _mixed_precision(chosen)
    wanted = max(kinds)  # the config is the same everywhere: nodes on the CPU are the ones that lack GPUs
    rank, each = next((rank, each) for rank, each in enumerate(chosen) if each.type != wanted)
    peer = next(each for each in chosen if each.type == wanted)
    return Verdict(
        "node",
        f"node {each.node} would train on {each.type}, but node {peer.node} on {wanted}: repair or exclude "
        f"{each.node}, or set resources.device",
        rank,
    )


def _mixed_precision(chosen: Sequence[RankDevice]) -> Verdict | None:
    """The refusal of `precision.dtype=auto` where ranks would resolve it differently; None if they agree."""
    first = chosen[0]
    for rank, each in enumerate(chosen):
        if each.precision != first.precision:
            return Verdict(
                "config",
                f"precision.dtype=auto would be {first.precision} on node {first.node}, but {each.precision} "
                f"on node {each.node}; set precision.dtype=fp32, or another one that all nodes have",
                rank,
            )
    return None
