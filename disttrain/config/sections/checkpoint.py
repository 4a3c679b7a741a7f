"""Section `checkpoint`: intervals, location and retention."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveInt

from disttrain.config.sections.base import NotInKey, Section

DEFAULT_INTERVAL_S = 900.0


class CheckpointConfig(Section):
    """Intervals, location and retention of checkpoints.

    A run saves a checkpoint on every stop request, also without an interval.
    """

    every_steps: PositiveInt | None = None
    """Steps between checkpoints."""
    every_s: NotInKey[NonNegativeFloat | None] = None
    """Seconds between checkpoints; with `every_steps`, the earlier of both. 0: none by time. null: 900
    without `every_steps`, else none."""
    best: bool = True
    """With `every_steps` or `every_s`: also save after each validation with the lowest loss so far."""
    keep: NotInKey[PositiveInt] = 2
    """Number of newest checkpoints kept; the one with the lowest validation loss is kept in addition."""
    dir: NotInKey[str | None] = None
    """Folder of checkpoints, with a subfolder `<sweep>/<run>` for each run; null: `checkpoints` of the run
    directory."""
    asynchronous: bool = True
    """Write files while training continues; training waits only for the copy to host memory."""
    start_from: str | None = None
    """Path of a checkpoint folder that a new run starts from."""
    start_with: Literal["all", "model"] = "all"
    """`all`: continue from that step with model, optimizer and random state. `model`: load the model alone
    and begin at step 1."""

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
