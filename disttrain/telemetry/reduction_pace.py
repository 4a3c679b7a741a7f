"""How many steps lie between two reductions of losses and communication over all ranks."""

from __future__ import annotations

import math

EVERY_S = 1.0
"""Intended seconds between two reductions, as far as `MOST_STEPS` permits."""
MOST_STEPS = 100
"""Largest number of steps between two reductions if `train.log_every` is smaller: steps may become slower."""


class ReductionPace:
    """A reduction follows every `log_every` steps or, where they last less than `EVERY_S`, a multiple of
    them."""

    def __init__(self, log_every: int) -> None:
        self._log_every = log_every
        self.steps = log_every
        """Steps between two reductions."""

    def set(self, step_s: float) -> None:
        """Take the seconds of a step (0: unknown): the same on all ranks, and after the same step."""
        wanted = math.ceil(EVERY_S / step_s / self._log_every) if step_s > 0 else 1
        self.steps = self._log_every * max(1, min(wanted, MOST_STEPS // self._log_every))

    def due(self, step: int) -> bool:
        """Whether a reduction follows `step`."""
        return step % self.steps == 0
