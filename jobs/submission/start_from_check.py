"""Check the checkpoints that new runs start from before submission, as far as this machine sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from disttrain.checkpoint.start_from import is_visible, refuse_missing
from disttrain.errors import ConfigError
from sweeps.expand import RunPlan


def check_start_from(runs: Sequence[RunPlan], existing: Collection[str]) -> None:
    """Raise `ConfigError` for a path of a new run that holds no checkpoint.

    `existing` has the keys of configs that have a run: such a run may go on from a checkpoint of its own
    after the one that it started from was deleted.
    """
    for path in sorted(_paths([run for run in runs if run.config_key not in existing])):
        if is_visible(path) and (message := refuse_missing(path)):
            raise ConfigError(message)


def unchecked_start_from(runs: Sequence[RunPlan]) -> list[str]:
    """A line for each path on a file system that this machine does not have."""
    return [
        f"checkpoint.start_from={path}: its file system is not on this machine, so it can only be checked in "
        "the job"
        for path in sorted(_paths(runs))
        if not is_visible(path)
    ]


def _paths(runs: Sequence[RunPlan]) -> set[str]:
    return {path for run in runs if (path := run.config.checkpoint.start_from) is not None}
