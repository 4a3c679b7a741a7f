"""Lateness by rank and step, reduced to the size of a figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.stats.estimates import Floats
from analysis.stragglers.outliers import median_of_others
from analysis.stragglers.rank_steps import RankSteps

MOST_ROWS, MOST_COLUMNS = 64, 120


@dataclass(frozen=True)
class HeatMap:
    """Seconds by which ranks exceed the median of the other ranks."""

    excess_s: Floats
    """(rows, columns); mean over the steps of a column, then the largest over the ranks of a row."""
    ranks: list[tuple[int, int]]
    """First and last rank of each row."""
    steps: list[tuple[int, int]]
    """First and last step of each column."""


def heat_map(found: RankSteps, rows: int = MOST_ROWS, columns: int = MOST_COLUMNS) -> HeatMap:
    """The excess of own seconds over the median of the other ranks, in at most `rows` x `columns` cells.

    A row of several ranks shows the slowest, so that one slow rank of many stays visible.
    """
    excess = found.own_s - median_of_others(found.own_s)
    of_columns = _parts(found.own_s.shape[1], columns)
    of_rows = _parts(found.ranks, rows)
    means = np.stack(
        [np.average(excess[:, part], axis=1, weights=found.counts[part]) for part in of_columns], axis=1
    )
    cells = np.stack([means[part].max(axis=0) for part in of_rows])
    last = found.steps + found.counts - 1
    return HeatMap(
        cells,
        [(found.rank_ids[part[0]], found.rank_ids[part[-1]]) for part in of_rows],
        [(int(found.steps[part[0]]), int(last[part[-1]])) for part in of_columns],
    )


def _parts(length: int, most: int) -> list[NDArray[np.intp]]:
    return np.array_split(np.arange(length), min(length, most))
