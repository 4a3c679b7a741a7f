"""Many steps in one record: sums, extremes and the distribution survive, a million lines do not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.log_histogram import bin_of
from disttrain.telemetry.step_clock import PhaseSeconds

DECIMALS = 7  # a tenth of a microsecond: what a host clock can tell apart


@dataclass
class StepAccumulator:
    """Steps put together, in order."""

    first: int = 0
    last: int = 0
    steps: int = 0
    start: float = 0.0
    sums: PhaseSeconds = field(default_factory=list)
    shortest: tuple[float, int] = (math.inf, 0)
    """Duration and step."""
    longest: tuple[float, int] = (-math.inf, 0)
    bins: dict[int, int] = field(default_factory=dict)
    loss_sum: float = 0.0
    lr: float = 0.0

    def add(self, step: int, start: float, parts: PhaseSeconds, loss: float, lr: float) -> None:
        if not self.steps:
            self.first, self.start, self.sums = step, start, [0.0] * len(parts)
        self.last = step
        self.steps += 1
        step_s = sum(parts)
        for index, seconds in enumerate(parts):
            self.sums[index] += seconds
        self.shortest = min(self.shortest, (step_s, step))
        self.longest = max(self.longest, (step_s, step))
        place = bin_of(step_s)
        self.bins[place] = self.bins.get(place, 0) + 1
        self.loss_sum += loss
        self.lr = lr

    def as_record(self, named: Mapping[str, float | None], samples_per_step: int) -> dict[str, Any]:
        """The line of this window (`records.StepAggregate`); `named` are the sums by class."""
        return {
            "schema_version": SCHEMA_VERSION,
            "first": self.first,
            "last": self.last,
            "steps": self.steps,
            "start_s": round(self.start, DECIMALS),
            "step_s": round(sum(self.sums), DECIMALS),
            **named,
            "shortest_s": round(self.shortest[0], DECIMALS),
            "shortest_step": self.shortest[1],
            "longest_s": round(self.longest[0], DECIMALS),
            "longest_step": self.longest[1],
            "bins": [[place, self.bins[place]] for place in sorted(self.bins)],
            "samples": samples_per_step * self.steps,
            "loss": self.loss_sum / self.steps,
            "lr": self.lr,
        }
