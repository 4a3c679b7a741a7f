"""Probe of the links: rates between neighbouring nodes, in both directions, before the first step.

A collective is as slow as its slowest link, and all ranks leave it together. So step records show a slow link
as transfer on every rank; only rates of single links name it. The first rank of each node takes part:

    target -> source    ready: the message does not wait for a late target
    source -> target    the message, timed by the source
    target -> source    acknowledgement

The nodes of a ring are measured in two or three rounds of disjoint pairs, whatever their number.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from disttrain.records.json_files import write_json
from disttrain.records.links import LinkRates, NodePairRate
from disttrain.records.run_directory import Attempt
from disttrain.runtime import heartbeat
from disttrain.runtime.json_lines import drop_if_disk_full
from disttrain.runtime.process_group import World

MESSAGES = 4
"""Messages in each direction; the fastest counts, because disturbances only delay."""
GLOO_MIB = 1.0
"""Size of a message over gloo, where the config leaves the size open."""


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Pairs of neighbours in a ring of nodes, in rounds in which each node is in one pair at most."""
    if nodes < 2:
        return []
    if nodes == 2:
        return [[(0, 1)]]
    pairs = [(node, (node + 1) % nodes) for node in range(nodes)]
    even, odd = pairs[: nodes // 2 * 2 : 2], pairs[1 : nodes // 2 * 2 : 2]
    return [even, odd, pairs[-1:]] if nodes % 2 else [even, odd]


def message_bytes(world: World, configured_mib: float | None) -> int:
    """Size of a message; 0: no probe. Over NCCL the probe runs only where the config gives a size, because
    it has not yet run there."""
    if world.nodes < 2:
        return 0
    if configured_mib is None:
        configured_mib = GLOO_MIB if world.backend == "gloo" else 0.0
    return round(configured_mib * 2**20)


def write_rates(world: World, attempt: Attempt, configured_mib: float | None) -> None:
    """Measure the links and write `links.json` on rank 0. All ranks together."""
    size = message_bytes(world, configured_mib)
    found = probe_links(world, attempt.number, size) if size else None
    if found is not None and attempt.superseded() is None:
        with drop_if_disk_full():
            write_json(attempt.links, found.model_dump(mode="json"))


def probe_links(world: World, attempt: int, size: int) -> LinkRates | None:
    """Rates between neighbouring nodes on rank 0; None on the other ranks and where all nodes are one host.
    All ranks together.

    Args:
        size: bytes of a message.
    """
    hosts = world.all_gather_object(socket.gethostname())[:: world.local_size]
    if len(set(hosts)) < 2:
        return None
    rates = world.gather_object(measure_rates(world, size))
    if rates is None:
        return None
    found = sorted(
        (rate for of_rank in rates for rate in of_rank), key=lambda each: (each.source, each.target)
    )
    return LinkRates(
        attempt=attempt, backend=str(world.backend), message_bytes=size, hosts=hosts, rates=found
    )


def measure_rates(world: World, size: int) -> list[NodePairRate]:
    """Rates that this rank measured as a source. All ranks together; only the first of a node takes part."""
    found: list[NodePairRate] = []
    if world.local_rank != 0:
        return found
    node = world.rank // world.local_size
    device = world.device if world.backend == "nccl" else "cpu"  # gloo sends no tensor of a GPU
    end = _End(
        torch.zeros(size, dtype=torch.uint8, device=device),
        torch.zeros(1, dtype=torch.uint8, device=device),
    )
    with heartbeat.collective():
        for pairs in rounds(world.nodes):
            for pair in pairs:
                for source, target in (pair, pair[::-1]):
                    if node == source:
                        seconds = end.send(target * world.local_size)
                        found.append(NodePairRate(source=source, target=target, bytes_per_s=size / seconds))
                    elif node == target:
                        end.receive(source * world.local_size)
    return found


@dataclass(frozen=True)
class _End:
    """This rank's end of a link."""

    message: torch.Tensor
    signal: torch.Tensor

    def send(self, peer: int) -> float:
        """Seconds of the fastest message to `peer`."""
        fastest = float("inf")
        for _ in range(MESSAGES):
            self._exchange(dist.irecv, self.signal, peer)
            began = time.perf_counter()
            self._exchange(dist.isend, self.message, peer)
            self._exchange(dist.irecv, self.signal, peer)
            fastest = min(fastest, time.perf_counter() - began)
        return fastest

    def receive(self, peer: int) -> None:
        for _ in range(MESSAGES):
            self._exchange(dist.isend, self.signal, peer)
            self._exchange(dist.irecv, self.message, peer)
            self._exchange(dist.isend, self.signal, peer)

    def _exchange(self, operation: Callable[..., Any], tensor: torch.Tensor, peer: int) -> None:
        # batched, because NCCL would make a communicator for each pair of an unbatched message
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
            work.wait()
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
