"""Collectives of the profiled steps of a run, in their order of start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from analysis.read.attempts import RunAttempt
from analysis.read.lines import Int32, Real, read_columns


class _Line(msgspec.Struct, gc=False):
    """`disttrain.records.steps.SampledCollective`, as far as analysis reads it."""

    kind: str
    start_s: Real
    duration_s: Real
    exposed_s: Real
    bytes: int | None = None
    ranks: int | None = None
    dimension: str = "world"


class Collective(NamedTuple):
    """One collective of a step, over all ranks and profiled steps."""

    kind: str
    bytes: int | None
    """Size of the larger of input and output on one rank; None where the profiler did not report it."""
    ranks: int | None
    dimension: str
    """`world`, or under hybrid sharding `shard` or `replicate`."""
    start_s: float
    """Since the step began: of the first rank to arrive, median over steps."""
    duration_s: float
    """Of the last rank to arrive, which did not wait: median over steps."""


class ProfiledStep(NamedTuple):
    """What a step communicates."""

    collectives: tuple[Collective, ...]
    backward_end_s: float
    """End of the compute that hides communication, since the step began."""


def profiled_step(attempts: Sequence[RunAttempt], problems: list[str]) -> ProfiledStep | None:
    """Of the newest attempt; None without profiled steps, or where steps or ranks differ in collectives."""
    for attempt in reversed(attempts):
        fields = {"step": Int32, "exposed_s": Real, "collectives": list[_Line]}
        ranks = [read_columns(path, fields, problems) for _, path in attempt.numbered("comm-*.jsonl")]
        lines = [line for rank in ranks for line in rank["collectives"] if line]
        if not lines:
            continue
        shapes = {tuple((each.kind, each.bytes, each.ranks) for each in line) for line in lines}
        if len(shapes) > 1:
            return None
        steps = np.concatenate([rank["step"][: len(rank["collectives"])] for rank in ranks])
        start, duration = (
            np.array([[getattr(each, name) for each in line] for line in lines], dtype=np.float64)
            for name in ("start_s", "duration_s")
        )
        exposed = np.concatenate([rank["exposed_s"] for rank in ranks])
        by_step = [steps == step for step in np.unique(steps)]
        first = np.median([start[rows].min(axis=0) for rows in by_step], axis=0)
        least = np.median([duration[rows].min(axis=0) for rows in by_step], axis=0)
        last = (start + duration).max(axis=1)
        end = float(np.median([(last - exposed)[rows].min() for rows in by_step]))
        return ProfiledStep(
            tuple(
                Collective(each.kind, each.bytes, each.ranks, each.dimension, float(begin), float(seconds))
                for each, begin, seconds in zip(lines[0], first, least, strict=True)
            ),
            end,
        )
    return None
