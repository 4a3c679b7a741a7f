"""Seconds of one run as matrices of rank x step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.estimates import Floats

OWN_PHASES = ("compute_s", "input_s", "optimizer_s", "checkpoint_s", "other_s")
"""Phases in which a rank waits for no other rank."""


@dataclass(frozen=True)
class RankSteps:
    """Measured steps of one run that every rank recorded. Matrices have the shape (ranks, steps), in seconds.

    A column is a step record. The record of several steps counts as their mean, `counts` times.
    """

    steps: NDArray[np.int64]
    """First step of each column."""
    counts: NDArray[np.int64]
    """Number of steps of each column."""
    hosts: tuple[str, ...]
    """Node of each rank; empty if unknown."""
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
    def nodes(self) -> dict[str, list[int]]:
        """Ranks of each known node."""
        found: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            if host:
                found.setdefault(host, []).append(rank)
        return found


def rank_steps(steps: pd.DataFrame) -> RankSteps | None:
    """The matrices of one run from its rows of `Frames.steps`; None without two ranks and one common step.

    Steps that a rank did not record, and steps without a measurement, are left out. Where no phase was
    measured, own seconds are the step's seconds minus exposed communication.
    """
    rows = steps[steps["measured"].to_numpy(dtype=bool)].sort_values(["step", "rank"], kind="stable")
    ranks = np.unique(rows["rank"].to_numpy())
    if len(ranks) < 2:
        return None
    per_step = rows.groupby("step", observed=True)["rank"].transform("nunique").to_numpy()
    rows = rows[per_step == len(ranks)].drop_duplicates(["step", "rank"], keep="last")
    if rows.empty:
        return None
    shape = (len(rows) // len(ranks), len(ranks))
    counts = rows["steps"].to_numpy().reshape(shape)

    def matrix(name: str) -> Floats:
        if name not in rows:
            return np.full(shape[::-1], np.nan)
        return (rows[name].to_numpy(dtype=np.float64).reshape(shape) / counts).T

    phases = {name: matrix(name) for name in OWN_PHASES}
    phases = {name: seconds for name, seconds in phases.items() if np.isfinite(seconds).any()}
    step_s, wait_s, transfer_s = (matrix(name) for name in ("step_s", "comm_wait_s", "comm_transfer_s"))
    if phases:
        own_s = np.sum([np.nan_to_num(seconds) for seconds in phases.values()], axis=0)
    else:
        own_s = step_s - np.nan_to_num(wait_s) - np.nan_to_num(transfer_s)
    first = rows["host"].to_numpy()[: len(ranks)] if "host" in rows else [""] * len(ranks)
    return RankSteps(
        rows["step"].to_numpy(dtype=np.int64).reshape(shape)[:, 0],
        counts[:, 0].astype(np.int64),
        tuple(str(host) for host in first),
        step_s,
        own_s,
        wait_s,
        transfer_s,
        phases,
    )
