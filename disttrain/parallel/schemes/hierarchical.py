"""Scheme `hierarchical`: sum within each node, all-reduce between nodes by one rank each, broadcast within.

Of L nodes, the link of each carries 2 (L - 1) / L of the gradients in each direction. A ring over all N ranks
in order of nodes carries 2 (N - 1) / N there: at most twice as much (one hop of the ring leaves each node),
but in 2 (N - 1) hops that wait for the slow link instead of 2 (L - 1).
"""

from __future__ import annotations

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme


class Hierarchical(Scheme):
    compares_collectives = False

    def __init__(self, group: CountedGroup) -> None:
        super().__init__(group)
        firsts = range(0, group.size, group.local_size)
        nodes = [group.subgroup(range(first, first + group.local_size)) for first in firsts]
        [self.node] = [node for node in nodes if node is not None]
        self.leaders = group.subgroup(firsts)
        """The first ranks of all nodes; None on another rank."""

    def average(self, gradient: FlatGradient, step: int) -> None:
        self.node.reduce(gradient.values)
        if self.leaders is not None:
            self.leaders.all_reduce(gradient.values.div_(self.group.size))
        self.node.broadcast(gradient.values)


def build(group: CountedGroup) -> Hierarchical:
    return Hierarchical(group)
