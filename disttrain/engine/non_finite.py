"""The end of a run whose gradients are not finite, by `precision.on_non_finite`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disttrain.config.sections.precision import PrecisionConfig
from disttrain.errors import NonFinite
from disttrain.telemetry.step_log import SkippedSteps

VIEW = 2
"""Numbers in the view of a rank."""


class NonFinitePolicy:
    """Ends the run when too many steps were skipped.

    Each rank reads its skipped steps once the device has finished them, so a rank may be behind another. The
    ranks therefore compare their views at the step-boundary agreement, and all raise at the same step.

    Parameters
    ----------
    config : section `precision`
    skipped : returns the skipped steps of this rank; its argument is whether to wait for the device
    """

    def __init__(self, config: PrecisionConfig, skipped: Callable[[bool], SkippedSteps]) -> None:
        self._stops = config.on_non_finite == "stop"
        self._limit = 1 if self._stops else config.max_skipped
        self._skipped = skipped

    def own_view(self, wait: bool = False) -> list[float]:
        """(skipped steps that count, newest skipped step); the maximum over ranks goes to `check`."""
        skipped = self._skipped(wait)
        return [skipped.of_attempt if self._stops else skipped.in_a_row, skipped.last]

    def check(self, view: Sequence[float]) -> None:
        """Raise `NonFinite` if the run ends. All ranks together, with the same view."""
        count, last = (int(number) for number in view)
        if count < self._limit:
            return
        if self._stops:
            raise NonFinite(f"step {last}: the gradients are not finite (precision.on_non_finite=stop)")
        raise NonFinite(
            f"{count} steps in a row, up to step {last}, have gradients that are not finite "
            f"(precision.max_skipped={self._limit})"
        )
