"""Section `checkpoint`: intervals, location and retention."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from disttrain.config.sections.base import NOT_IN_KEY, Section


class CheckpointConfig(Section):
    """Intervals, location and retention of checkpoints.

    A run saves a checkpoint on every stop request, also without an interval.
    """

    every_steps: PositiveInt | None = None
    """Steps between checkpoints."""
    every_s: PositiveFloat | None = None
    """Seconds between checkpoints; with `every_steps`, the earlier of both."""
    best: bool = True
    """With an interval: also save after each validation with the lowest loss so far."""
    keep: Annotated[PositiveInt, Field(json_schema_extra=NOT_IN_KEY)] = 2
    """Number of newest checkpoints kept; the one with the lowest validation loss is kept in addition."""
    dir: Annotated[str | None, Field(json_schema_extra=NOT_IN_KEY)] = None
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
    def regular(self) -> bool:
        """Whether checkpoints are taken at intervals."""
        return self.every_steps is not None or self.every_s is not None
