"""Consecutive steps in one record: keeps sums, extremes and the distribution without a line per step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from disttrain.records.base import SCHEMA_VERSION
from disttrain.records.log_histogram import bin_of
from disttrain.telemetry.step_clock import PhaseSeconds

DECIMALS = 7
"""Of seconds in step records: 0.1 us, the resolution of the host's clock."""


@dataclass
class StepAccumulator:
    """Accumulates steps, in order, for a `StepAggregate` record."""

    first: int = 0
    last: int = 0
    steps: int = 0
    start: float = 0.0
    gap_s: float = 0.0
    sums: PhaseSeconds = field(default_factory=list)
    shortest: tuple[float, int] = (math.inf, 0)
    """Seconds and step."""
    longest: tuple[float, int] = (-math.inf, 0)
    bins: Counter[int] = field(default_factory=Counter)
    loss_sum: float = 0.0
    losses: int = 0
    """Steps with a recorded loss."""
    lr: float = 0.0
    grad_norm_sum: float = 0.0
    grad_norms: int = 0
    """Steps with a finite gradient norm."""
    skipped: int = 0
    """Steps whose update was skipped."""

    def add(
        self, step: int, start: float, phases: PhaseSeconds, loss: float, lr: float, gap_s: float
    ) -> None:
        if not self.steps:
            self.first, self.start, self.sums = step, start, [0.0] * len(phases)
        self.last = step
        self.steps += 1
        self.gap_s += gap_s
        step_s = sum(phases)
        for index, seconds in enumerate(phases):
            self.sums[index] += seconds
        self.shortest = min(self.shortest, (step_s, step))
        self.longest = max(self.longest, (step_s, step))
        self.bins[bin_of(step_s)] += 1
        if not math.isnan(loss):
            self.loss_sum += loss
            self.losses += 1
        self.lr = lr

    def add_gradients(self, grad_norm: float | None, skipped: bool) -> None:
        """Add the gradient norm of the step that `add` took last."""
        self.skipped += skipped
        if grad_norm is not None and math.isfinite(grad_norm):
            self.grad_norm_sum += grad_norm
            self.grad_norms += 1

    def as_record(self, phases: Mapping[str, float | None], samples_per_step: int) -> dict[str, Any]:
        """The content of a `StepAggregate` record; `phases` are the sums in seconds by the name of the
        phase."""
        return {
            "schema_version": SCHEMA_VERSION,
            "first": self.first,
            "last": self.last,
            "steps": self.steps,
            "start_s": round(self.start, DECIMALS),
            "step_s": round(sum(self.sums), DECIMALS),
            "gap_s": round(self.gap_s, DECIMALS),
            **phases,
            "shortest_s": round(self.shortest[0], DECIMALS),
            "shortest_step": self.shortest[1],
            "longest_s": round(self.longest[0], DECIMALS),
            "longest_step": self.longest[1],
            "bins": [[number, self.bins[number]] for number in sorted(self.bins)],
            "samples": samples_per_step * self.steps,
            "loss": self.loss_sum / self.losses if self.losses else None,
            "lr": self.lr,
            "grad_norm": self.grad_norm_sum / self.grad_norms if self.grad_norms else None,
            "skipped": self.skipped,
        }
