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
from typing import Literal, NamedTuple

import torch.distributed as dist

from disttrain.config.config_tree import Config
from disttrain.config.refusals import refusal_with
from disttrain.errors import ConfigError, NodeFault
from disttrain.runtime.device import choose_device, choose_precision
from disttrain.runtime.kernels import require_compiler, require_kernel
from disttrain.runtime.process import RankInfo

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


class Verdict(NamedTuple):
    """Reason not to start: the problem, and the first rank of the node that has it."""

    problem: Problem
    message: str
    rank: int

    def error(self, first: int = 0) -> ConfigError | NodeFault:
        """The exception; the ranks of the verdict begin with rank `first`."""
        if self.problem == "config":
            return ConfigError(self.message)
        return NodeFault(self.message, first + self.rank)


def choose(config: Config, info: RankInfo) -> RankDevice:
    """Choose this rank's device and backend; the device must have the precision, the attention kernel and the
    compiler of `config`, and a CPU no option that needs a GPU. Raises nothing."""
    node, requested, backend = socket.gethostname(), config.resources.device, config.parallel.backend
    try:
        device = choose_device(requested, info.local_rank, info.local_size * config.gpus_per_rank)
        precision, _ = choose_precision(config.precision.dtype, device)
        require_kernel(config.train.attention, device)
        require_compiler(config.compile.used_backend, device)
        if device.type == "cpu" and (refused := refusal_with(config, "resources", device="cpu")):
            raise ConfigError(f"this rank trains on the CPU: {refused}")
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
    return RankDevice(node, str(device), backend, precision)


def agree(own: RankDevice, rank: int, size: int, store: dist.Store) -> None:
    """Raise the same `ConfigError` or `NodeFault` on all ranks unless all have one device type, backend and
    precision.

    Waits for all ranks, up to the timeout of `store`.
    """
    store = dist.PrefixStore("device", store)
    store.set(str(rank), json.dumps(asdict(own)))
    if rank == 0:
        chosen = [RankDevice(**json.loads(text)) for text in store.multi_get([str(r) for r in range(size)])]
        store.set("verdict", json.dumps(find_problem(chosen)))
    if verdict := json.loads(store.get("verdict")):
        raise Verdict(*verdict).error()


def find_problem(chosen: Sequence[RankDevice]) -> Verdict | None:
    """The reason why ranks with these devices, by rank, cannot train together; None if they can.

    A problem of some nodes is theirs, so a start on other nodes may succeed; a problem of all ranks is one of
    the config, unless their GPUs are out of order.
    """
    failed = [(rank, own) for rank, own in enumerate(chosen) if own.problem]
    if failed:
        rank, own = next((pair for pair in failed if pair[1].problem == "node"), failed[0])
        problem: Problem = "node" if len(failed) < len(chosen) else own.problem or "node"
        return Verdict(problem, f"node {own.node}: {own.message}", rank)
    # the config is the same everywhere: nodes on the CPU are the ones that lack GPUs
    peer = max(chosen, key=lambda own: own.type)
    for rank, own in enumerate(chosen):
        if own.type != peer.type:
            return Verdict(
                "node",
                f"node {own.node} would train on {own.type}, but node {peer.node} on {peer.type}: repair or "
                f"exclude {own.node}, or set resources.device",
                rank,
            )
        if own.precision != peer.precision:
            return Verdict(
                "config",
                f"precision.dtype=auto would be {peer.precision} on node {peer.node}, but {own.precision} "
                f"on node {own.node}; set precision.dtype=fp32, or another one that all nodes have",
                rank,
            )
    return None
