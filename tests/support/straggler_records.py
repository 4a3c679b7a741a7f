"""Step records of synchronous ranks with known delays, as rows of `Frames.steps`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from analysis.read.steps import SECONDS, Steps
from analysis.results.rank_steps import RankSteps, rank_steps

BASE_S, TRANSFER_S, OPTIMIZER_S = 0.12, 0.03, 0.01
MATRICES = arrays(
    np.float64,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.floats(0, 100, allow_subnormal=False),
)
"""Seconds of two ranks and steps or more."""


def generate(
    added_s: NDArray[np.float64],
    *,
    ranks_per_node: int = 1,
    transfer_s: float = TRANSFER_S,
    noise_s: float = 0.0002,
    phase: str = "compute_s",
    seed: int = 0,
) -> pd.DataFrame:
    """Rows of one run in which rank r takes `added_s[r, s]` longer in `phase` of step s, and all wait for the
    last rank. `noise_s`: standard deviation of the measured time in a collective."""
    ranks, steps = added_s.shape
    random = np.random.default_rng(seed)
    parts = {"compute_s": BASE_S, "input_s": 0.002, "optimizer_s": OPTIMIZER_S, "checkpoint_s": 0.0}
    phases = {
        name: np.full((ranks, steps), seconds) for name, seconds in (parts | {"other_s": 0.001}).items()
    }
    phases[phase] = phases[phase] + added_s
    own_s = np.sum([*phases.values()], axis=0)
    exposed_s = transfer_s + own_s.max(axis=0) - own_s + noise_s * random.standard_normal((ranks, steps))
    smallest = exposed_s.min(axis=0)
    columns = phases | {
        "comm_exposed_s": exposed_s,
        "comm_wait_s": exposed_s - smallest,
        "comm_transfer_s": np.broadcast_to(smallest, (ranks, steps)),
        "step_s": own_s + exposed_s,
        "step": np.broadcast_to(np.arange(1, steps + 1), (ranks, steps)),
        "rank": np.broadcast_to(np.arange(ranks)[:, None], (ranks, steps)),
    }
    rows = pd.DataFrame({name: np.ravel(values) for name, values in columns.items()})
    return rows.assign(
        run="runs/made/n1", attempt=0, steps=1, measured=True, kept=True,
        host=[f"c{rank // ranks_per_node:02d}" for rank in rows["rank"]],
    )  # fmt: skip


def steps_of(rows: pd.DataFrame) -> Steps:
    """Rows of one run in the order of attempt and rank as its steps."""
    rows = rows.sort_values(["attempt", "rank"], kind="stable")
    none = np.full(len(rows), np.nan)
    names = {"rank": np.int32, "attempt": np.int16, "step": np.int32, "kept": bool, "measured": bool}
    return Steps(
        counts=rows["steps"].to_numpy(np.int32),
        samples=np.ones(len(rows), dtype=np.int32),
        seconds={name: rows[name].to_numpy(float) if name in rows else none for name in SECONDS},
        bins=np.full(len(rows), None, dtype=object),
        host=rows["host"].to_numpy(object) if "host" in rows else np.full(len(rows), "", dtype=object),
        **{name: rows[name].to_numpy(kind) for name, kind in names.items()},
    )


def seconds_of(rows: pd.DataFrame) -> RankSteps | None:
    return rank_steps(steps_of(rows))


def delays(
    ranks: int, steps: int, slow: Sequence[int] = (), slow_s: float = 0.0, jitter_s: float = 0.0,
    between: tuple[int, int] | None = None, seed: int = 0,
) -> NDArray[np.float64]:  # fmt: skip
    """Normal jitter on all ranks, and `slow_s` more on some, only in the steps `between` (first, last)."""
    added = jitter_s * np.random.default_rng([seed, ranks]).standard_normal((ranks, steps))
    first, last = between or (1, steps)
    for rank in slow:
        added[rank, first - 1 : last] += slow_s
    return np.maximum(added, -0.9 * BASE_S)
