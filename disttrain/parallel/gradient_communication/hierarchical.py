"""Scheme `hierarchical`: sum within each node, all-reduce between nodes by one rank each, broadcast within.

Of L nodes, the link of each carries 2 (L - 1) / L of the gradients in each direction. A ring over all N ranks
in order of nodes carries 2 (N - 1) / N there: at most twice as much (one hop of the ring leaves each node),
but in 2 (N - 1) hops that wait for the slow link instead of 2 (L - 1).
"""

from __future__ import annotations

from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.base import FlatGradient, Scheme
from disttrain.parallel.gradient_communication.counted_group import CountedGroup, own_group, subgroup
from disttrain.runtime.process_group import World


def average_hierarchically(values: Tensor, node: CountedGroup, leaders: CountedGroup | None) -> None:
    """Overwrite `values` with the mean over all ranks.

    `node`: the ranks of this node; its rank 0 is the leader. `leaders`: the leaders of all nodes; None on a
    rank that is not a leader.
    """
    node.reduce(values)
    if leaders is not None:
        leaders.all_reduce(values.div_(node.size * leaders.size))
    node.broadcast(values)


class Hierarchical(Scheme):
    """`group` is that of all ranks, for the warm-up."""

    def __init__(self, group: CountedGroup, node: CountedGroup, leaders: CountedGroup | None) -> None:
        super().__init__(group)
        self.node, self.leaders = node, leaders

    def average(self, gradient: FlatGradient, step: int) -> None:
        average_hierarchically(gradient.values, self.node, self.leaders)


def build(options: GradientCommunicationConfig, world: World) -> Hierarchical:
    """Every rank takes part in the creation of every group."""
    starts = range(0, world.size, world.local_size)
    nodes = [subgroup(world, range(start, start + world.local_size)) for start in starts]
    leaders = subgroup(world, starts)
    node = nodes[world.rank // world.local_size]
    assert node is not None, "each rank belongs to one node"
    return Hierarchical(own_group(world), node, leaders)
