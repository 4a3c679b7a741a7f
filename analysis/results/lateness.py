"""Lateness by rank and step, reduced to the size of a figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.results.rank_steps import RankSteps
from analysis.results.slow_ranks import median_of_others
from analysis.stats.estimates import Floats

MOST_ROWS, MOST_COLUMNS = 64, 120


@dataclass(frozen=True)
class Lateness:
    """Seconds by which ranks exceed the median of the other ranks."""

    excess_s: Floats
    """(rows, columns); mean over the steps of a column, then the largest over the ranks of a row."""
    ranks: list[tuple[int, int]]
    """First and last rank of each row."""
    steps: list[tuple[int, int]]
    """First and last step of each column."""


def lateness(seconds: RankSteps, rows: int = MOST_ROWS, columns: int = MOST_COLUMNS) -> Lateness:
    """The excess of own seconds over the median of the other ranks, in at most `rows` x `columns` cells.

    A row of several ranks shows the slowest, so that one slow rank of many stays visible.
    """
    excess = seconds.own_s - median_of_others(seconds.own_s)
    ranks, steps = excess.shape
    of_rows = np.array_split(np.arange(ranks), min(ranks, rows))
    of_columns = np.array_split(np.arange(steps), min(steps, columns))
    means = [np.average(excess[:, part], axis=1, weights=seconds.counts[part]) for part in of_columns]
    last = seconds.steps + seconds.counts - 1
    return Lateness(
        np.stack([np.stack(means, axis=1)[part].max(axis=0) for part in of_rows]),
        [(seconds.rank_ids[part[0]], seconds.rank_ids[part[-1]]) for part in of_rows],
        [(int(seconds.steps[part[0]]), int(last[part[-1]])) for part in of_columns],
    )
