"""Seconds of one run as matrices of rank x step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from analysis.read.steps import Steps
from analysis.stats.estimates import Floats

_SAME_HOST = 0.9
"""Share of the columns that a rank needs on one node to have its name; the rest is noise at the ends."""
OWN_PHASES = ("compute_s", "input_s", "optimizer_s", "checkpoint_s", "other_s")
"""Phases in which a rank waits for no other rank."""
_COMMUNICATION = ("comm_wait_s", "comm_transfer_s", "comm_exposed_s")


@dataclass(frozen=True)
class RankSteps:
    """Measured steps of one run that every rank recorded. Matrices have the shape (ranks, steps), in seconds.

    A row is a recorded rank; its number is in `rank_ids`, as ranks may be missing. A column is a step record.
    The record of several steps counts as their mean, `counts` times.
    """

    steps: NDArray[np.int32]
    """First step of each column."""
    counts: NDArray[np.int32]
    """Number of steps of each column."""
    rank_ids: tuple[int, ...]
    """Rank of each row, ascending."""
    host_steps: NDArray[np.object_]
    """Node of each rank in each column, which differs between attempts; empty if unknown."""
    step_s: Floats
    own_s: Floats
    """Seconds of a step outside communication."""
    wait_s: Floats
    """Exposed communication before the last rank arrived; NaN where not measured."""
    transfer_s: Floats
    """The rest of the exposed communication; NaN where not measured."""
    phases_s: Mapping[str, Floats]
    """Seconds by phase of `OWN_PHASES`; only phases with a measurement."""

    @property
    def ranks(self) -> int:
        return self.own_s.shape[0]

    @property
    def separates_waiting(self) -> bool:
        """Whether `own_s` leaves out the waiting for other ranks; without it, ranks cannot be compared."""
        return "compute_s" in self.phases_s or not np.allclose(self.own_s, self.step_s)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Node of each row throughout the run; empty if unknown or if the run changed its nodes."""
        return self.hosts_between(0, len(self.steps) - 1)

    @property
    def nodes(self) -> dict[str, list[int]]:
        """Rows of each node in `hosts`."""
        return _rows_of(self.hosts)

    def hosts_between(self, first: int, last: int) -> tuple[str, ...]:
        """Node of each row in these columns; empty if unknown or if no node has nine tenths of them."""
        part = self.host_steps[:, first : last + 1]
        found = []
        for row in part:
            ((host, times),) = Counter(row).most_common(1)
            found.append(str(host) if times >= _SAME_HOST * len(row) else "")
        return tuple(found)

    def nodes_between(self, first: int, last: int) -> dict[str, list[int]]:
        """Rows of each node in `hosts_between`."""
        return _rows_of(self.hosts_between(first, last))


def _rows_of(hosts: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row, host in enumerate(hosts):
        if host:
            found.setdefault(host, []).append(row)
    return found


def rank_steps(steps: Steps) -> RankSteps | None:
    """The matrices of one run; None without two ranks and one common step.

    Steps that a rank did not record, and steps without a measurement, are left out. Where no phase was
    measured, own seconds are the step's seconds minus exposed communication. In steps whose communication
    some rank did not measure, `other_s` contains waiting, so it is no own work there.
    """
    cube = steps.cube(("step_s", *OWN_PHASES, *_COMMUNICATION))
    if cube is None or len(cube.ranks) < 2:
        return None
    of_step = {name: seconds / cube.counts for name, seconds in cube.seconds.items()}
    phases = {name: of_step[name] for name in OWN_PHASES if np.isfinite(of_step[name]).any()}
    step_s, wait_s, transfer_s = (of_step[name] for name in ("step_s", "comm_wait_s", "comm_transfer_s"))
    known = np.any([np.isfinite(of_step[name]) for name in _COMMUNICATION], axis=0).all(axis=0)
    if {"compute_s", "other_s"} <= phases.keys():
        rest_s = phases.pop("other_s")
        if known.any():
            phases["other_s"] = np.where(known, rest_s, 0.0)
    if phases:
        own_s = np.sum([np.nan_to_num(seconds) for seconds in phases.values()], axis=0)
    else:
        own_s = step_s - np.nan_to_num(wait_s) - np.nan_to_num(transfer_s)
    return RankSteps(
        cube.first, cube.counts, cube.ranks, cube.hosts, step_s, own_s, wait_s, transfer_s, phases
    )
