"""Ranks of a finished run that lack step records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.read.columns import Columns

_NAMED = 8
"""Ranks that a message names."""


def missing_ranks(steps: Columns, row: pd.Series) -> list[str]:
    """Messages on ranks whose records of the last attempt are missing, or hold fewer steps than the others'.

    Args:
        steps: attempt, rank, steps and measured of all records of the run.
        row: the run's row in a table of `load`; runs that do not count in the figures have no message.
    """
    if not row["included"] or pd.isna(row["world_size"]):
        return []
    last = steps["attempt"] == (0 if pd.isna(row["last_attempt"]) else int(row["last_attempt"]))
    world_size = int(row["world_size"])
    there = np.bincount(steps["rank"][last], minlength=world_size)[:world_size] > 0
    chosen = last & steps["measured"]
    counts = np.bincount(steps["rank"][chosen], steps["steps"][chosen], minlength=world_size)[:world_size]
    most = int(counts.max(initial=0))
    found = []
    if not there.all():
        found.append(
            f"{row['path']}/attempts: no step records of {_ranks(np.flatnonzero(~there), world_size)}"
        )
    short = np.flatnonzero(there & (counts < most))
    if short.size:
        fewest = int(counts[short].min())
        text = f"{_ranks(short, world_size)} recorded fewer measured steps than the others"
        found.append(f"{row['path']}/attempts: {text} ({fewest:,} of {most:,})")
    return found


def _ranks(ranks: Sequence[int] | np.ndarray, world_size: int) -> str:
    """`rank 3`, `ranks 1, 2 of 4`, `all 4 ranks`."""
    if len(ranks) == world_size:
        return "its rank" if world_size == 1 else f"all {world_size} ranks"
    named = ", ".join(str(rank) for rank in ranks[:_NAMED])
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more} of {world_size}"
