"""Section `checkpoint`: intervals, location and retention."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section

DEFAULT_INTERVAL_S = 900.0


class CheckpointConfig(Section):
    """Intervals, location and retention of checkpoints.

    Every stop request saves one, also without an interval.
    """

    every_steps: PositiveInt | None = None
    """Steps between checkpoints."""
    every_s: NotInKey[NonNegativeFloat | None] = None
    """Seconds between checkpoints, besides `every_steps`; 0: none by time; null: 900, or none with
    `every_steps`."""
    best: bool = True
    """With an interval: save also after each validation with the lowest loss so far."""
    keep: NotInKey[PositiveInt] = 2
    """Newest checkpoints that are kept, besides the one with the lowest validation loss."""
    dir: NotInKey[str | None] = None
    """Folder of checkpoints, by `<sweep>/<run>`; null: in the run directory."""
    asynchronous: bool = True
    """Write files while training continues."""
    start_from: str | None = None
    """Checkpoint folder that a new run starts from."""
    start_with: Literal["all", "model"] = "all"
    """`all`: continue from its step. `model`: load the model alone and begin at step 1."""

    @property
    def interval_s(self) -> float | None:
        """Seconds between checkpoints; None: no interval in seconds."""
        if self.every_s is None:
            return DEFAULT_INTERVAL_S if self.every_steps is None else None
        return self.every_s or None

    @property
    def requested(self) -> bool:
        """Whether the user set an interval; the run then saves at its end, too."""
        return bool(self.every_steps or self.every_s)
