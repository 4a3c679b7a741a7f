"""Check the checkpoints that new runs start from before submission, as far as this machine sees them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from disttrain.checkpoint.start_from import refuse_missing
from disttrain.errors import ConfigError
from jobs.schedulers.interface import Scheduler
from sweeps.expand import RunPlan


def check_start_from(
    runs: Sequence[RunPlan], existing: Collection[str | None], root: Path, scheduler: Scheduler | None = None
) -> None:
    """Raise `ConfigError` for a path of a new run that has no checkpoint, unless an earlier job may write it.

    Args:
        runs: the runs of a sweep.
        existing: keys of configs that have a run. Such a run may go on from a checkpoint of its own after the
            one that it started from was deleted.
        root: the runs folder.
        scheduler: the scheduler to submit to; None within a job.
    """
    paths = _paths([run for run in runs if run.config_key not in existing])
    if not paths or (scheduler is not None and _dependency(scheduler)):
        return
    for path in sorted(paths):
        if _is_visible(path, root) and (message := refuse_missing(path)):
            raise ConfigError(message)


def unchecked_start_from(runs: Sequence[RunPlan], root: Path, scheduler: Scheduler) -> list[str]:
    """A line for each path that this machine does not see, and for each that an earlier job may write."""
    paths = sorted(_paths(runs))
    lines = [
        f"checkpoint.start_from={path}: this machine has no folder {Path(path).parent}, so the path can only "
        "be checked in the job"
        for path in paths
        if not _is_visible(path, root)
    ]
    dependency = _dependency(scheduler) if paths else None
    if dependency is not None:
        lines += [
            f"checkpoint.start_from={path} holds no checkpoint yet; the job waits for others "
            f"(sbatch.dependency={dependency}), and checks the path when it starts"
            for path in paths
            if _is_visible(path, root) and refuse_missing(path)
        ]
    return lines


def _paths(runs: Sequence[RunPlan]) -> set[str]:
    return {path for run in runs if (path := run.config.checkpoint.start_from) is not None}


def _is_visible(path: str, root: Path) -> bool:
    """Whether this machine has the file system of a path.

    A login node may lack a file system of the compute nodes, and still have the empty folder on which they
    mount it. The runs folder is on both.
    """
    folder = os.path.dirname(os.path.realpath(path))
    return os.path.isdir(folder) or Path(folder).is_relative_to(os.path.realpath(root))


def _dependency(scheduler: Scheduler) -> str | None:
    """The `--dependency` of the site profile: its jobs may write the checkpoint."""
    profile = scheduler.profile(None)
    given = profile.as_dict().get("sbatch", {}).get("dependency") if profile is not None else None
    return None if given is None else str(given)
