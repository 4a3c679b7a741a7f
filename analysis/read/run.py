"""One run: everything that it recorded, and whether it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from analysis.read.attempts import RunAttempt
from analysis.read.lines import Int32, Real
from analysis.read.samples import Kind, Samples
from analysis.read.steps import Floats, Steps
from disttrain.records import gpu_hours
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir


class CurvePoint(msgspec.Struct, gc=False):
    """A point of one of the curves of metrics.json (`disttrain.records.metrics`)."""

    step: Int32
    loss: Real | None = None
    grad_norm: Real | None = None
    ratio: Real | None = None
    metrics: dict[str, Real | None] = {}
    elapsed_s: Real | None = None


@dataclass(frozen=True)
class Run:
    """Everything that one run recorded, and whether it counts."""

    folder: RunDir
    record: RunRecord | None
    """`run.json`; None where it cannot be used."""
    metrics: Metrics | None
    """`metrics.json` over the chosen measured steps; None where it cannot be used. Of each curve it holds
    the last point alone."""
    curves: Mapping[str, Sequence[CurvePoint]]
    """By name of `record.CURVES`."""
    steps: Steps
    samples: Mapping[Kind, Samples]
    attempts: tuple[RunAttempt, ...]
    usage: gpu_hours.RunGpuHours | None
    """GPU-hours and queue time of all starts; None where they are not on record."""
    reported: Mapping[str, float] | None
    """Figures in the `metrics.json` of a script of one's own without telemetry; None for other runs."""
    tags: str | None
    user_note: str | None
    state: str
    """As `status` shows it; from files alone planned, started, running, done, failed, ..."""
    included: bool
    """Finished and measured, so it counts in the figures."""
    note: str
    """Reason of exclusion, or a caveat; else empty."""
    starts: int
    """Attempts, as the scheduler counts them where it is asked."""
    problems: Sequence[str]
    """One line for each record or file that could not be read."""
    rejected: bool = False
    """Finished and measured, but left out for the warnings of its pre-flight."""

    @property
    def path(self) -> str:
        return str(self.folder.path)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config; empty without a usable `run.json`."""
        return self.record.config if self.record else {}

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Environment variables added to the job, of `env.json`; empty without it."""
        variables = (read_json_or_none(self.folder.env_json) or {}).get("variables")
        items = variables.items() if isinstance(variables, dict) else ()
        return {name: each.get("value") for name, each in items if isinstance(each, dict)}

    @property
    def step_durations_s(self) -> Floats:
        """Durations in seconds of the measured steps on rank 0; without step records, of the histogram in
        metrics.json."""
        recorded = self.steps.durations_s
        if recorded.size or self.metrics is None or self.metrics.step_time is None:
            return recorded
        histogram = self.metrics.step_time.histogram
        edges = np.asarray(histogram.edges_s)
        return np.repeat((edges[:-1] + edges[1:]) / 2, histogram.counts)

    @property
    def incomplete(self) -> list[str]:
        """Texts on ranks that lack step records, of a run that counts."""
        if not self.included or self.metrics is None:
            return []
        return self.steps.missing_ranks(self.metrics.world_size, self.metrics.attempt)
