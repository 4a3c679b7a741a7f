"""Rates of the links between neighbouring nodes, in both directions.

A collective is as slow as its slowest link, and all ranks leave it together. So step records show a slow link
as transfer on every rank; only rates of single links name it. The first rank of each node takes part:

    target -> source    ready: the message does not wait for a late target
    source -> target    the message, timed by the source
    target -> source    acknowledgement

The nodes of a ring are measured in two or three rounds of disjoint pairs, whatever their number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from disttrain.records.node import NodePairRate
from disttrain.runtime.process_group import World

MESSAGES = 4
"""Messages in each direction; the fastest counts, because disturbances only delay."""


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Pairs of neighbours in a ring of nodes, in rounds in which each node is in one pair at most."""
    pairs = [(node, (node + 1) % nodes) for node in range(nodes if nodes > 2 else nodes - 1)]
    even = nodes // 2 * 2
    return [part for part in (pairs[:even:2], pairs[1:even:2], pairs[even:]) if part]


def measure_rates(world: World, size: int) -> list[NodePairRate]:
    """Rates, by messages of `size` bytes, that this rank measured as a source. Collective: all ranks call it,
    but only the first of each node takes part."""
    if world.local_rank != 0:
        return []
    node = world.rank // world.local_size
    device = world.device if world.backend == "nccl" else "cpu"  # gloo sends no tensor of a GPU
    message = torch.zeros(size, dtype=torch.uint8, device=device)
    signal = torch.zeros(1, dtype=torch.uint8, device=device)
    rates = []
    for first, second in (pair for pairs in rounds(world.nodes) for pair in pairs):
        for source, target in ((first, second), (second, first)):
            if node == source:
                seconds = _send(message, signal, target * world.local_size)
                rates.append(NodePairRate(source=source, target=target, bytes_per_s=size / seconds))
            elif node == target:
                _receive(message, signal, source * world.local_size)
    return rates


def _send(message: torch.Tensor, signal: torch.Tensor, peer: int) -> float:
    """Seconds of the fastest message to `peer`."""
    fastest = float("inf")
    for _ in range(MESSAGES):
        _exchange(dist.irecv, signal, peer)
        began = time.perf_counter()
        _exchange(dist.isend, message, peer)
        _exchange(dist.irecv, signal, peer)
        fastest = min(fastest, time.perf_counter() - began)
    return fastest


def _receive(message: torch.Tensor, signal: torch.Tensor, peer: int) -> None:
    for _ in range(MESSAGES):
        _exchange(dist.isend, signal, peer)
        _exchange(dist.irecv, message, peer)
        _exchange(dist.isend, signal, peer)


def _exchange(operation: Callable[..., Any], tensor: torch.Tensor, peer: int) -> None:
    # batched, because NCCL would make a communicator for each pair of an unbatched message
    for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
        work.wait()
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
